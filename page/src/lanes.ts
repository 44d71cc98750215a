// The findings and the operators' notes of a time range as lanes, and events as flags of a chart. Pure.

import type { CloudEvent, Finding, Note, Severity } from "./types.ts";

export interface LaneBar {
  fromNs: number;
  toNs: number;
  isOpen: boolean;
  text: string;
  evidence: string;
  severity: Severity | "note";
}

/** From the bar of a cause to that of its effect. */
export interface Arrow {
  fromLane: number;
  toLane: number;
  atNs: number;
  toNs: number;
}

export interface Lane {
  name: string;
  bars: LaneBar[];
  arrows: Arrow[];
}

const MOST_LANES = 40;

/** One lane a subject, in the order in which its first finding began. */
export function lanesOf(findings: Finding[], untilNs: number, notes: Note[] = []): Lane[] {
  const sorted = findings.toSorted((a, b) => a.since_realtime_ns - b.since_realtime_ns);
  const lanes = new Map<string, Lane>();
  for (const finding of sorted) {
    const lane = lanes.get(finding.subject) ?? { name: finding.subject, bars: [], arrows: [] };
    if (lanes.size >= MOST_LANES && !lanes.has(finding.subject)) continue;
    lanes.set(finding.subject, lane);
    lane.bars.push({
      fromNs: finding.since_realtime_ns, toNs: finding.until_realtime_ns ?? untilNs, isOpen: finding.until_realtime_ns === null,
      text: finding.id.replaceAll("-", " "), evidence: finding.evidence, severity: finding.severity,
    });
  }
  const order = [...lanes.keys()];
  for (const effect of sorted) addArrow(lanes, order, effect, sorted);
  return notes.length === 0 ? [...lanes.values()] : [...lanes.values(), { name: "notes", bars: notes.map(noteBar), arrows: [] }];
}

function noteBar({ kind, author, text, subject, finding, realtime_ns: atNs, until_realtime_ns: untilNs }: Note): LaneBar {
  const about = [finding, subject].filter(Boolean).join(" of ");
  return { fromNs: atNs, toNs: untilNs ?? atNs, isOpen: true, text: `${kind === "comment" ? author : `${kind} by ${author}`}: ${text}`, evidence: about, severity: "note" };
}

/** A bar in a row of its lane, in pixels. Its text is right of `x`, or, `isLeft`, ends at it, and has room for `letters`. */
export interface PlacedBar {
  bar: LaneBar;
  row: number;
  x0: number;
  x1: number;
  textX: number;
  isLeft: boolean;
  letters: number;
}

/** So many rows has the lane of a subject at most, and that of the notes. */
const SUBJECT_ROWS = 3, NOTE_ROWS = 10;
const TEXT_GAP = 6;
/** A text that is cut to fewer letters says nothing. */
const FEWEST_LETTERS = 12;

/**
 * The bars of a lane, each in the first row where neither it nor its text covers another one. A text that has no room to the right
 * ends left of its bar, and one that fits on neither side is cut where there is more room. What finds no row is in the last one,
 * without a text.
 */
export function placedBars(bars: LaneBar[], x: (ns: number) => number, from: number, until: number, letterPx: number): PlacedBar[] {
  const rows: [number, number][][] = [];
  const most = bars[0]?.severity === "note" ? NOTE_ROWS : SUBJECT_ROWS;
  return bars.toSorted((a, b) => a.fromNs - b.fromNs).map((bar) => {
    const [x0, x1] = [x(bar.fromNs), Math.max(x(bar.fromNs) + 3, x(bar.toNs))];
    const wide = bar.text.length * letterPx + TEXT_GAP;
    const isWithin = x1 - x0 >= wide + TEXT_GAP;
    const isLeft = !isWithin && x0 + wide > until && (x0 - wide - TEXT_GAP >= from || x0 - from > until - x0);
    const textX = isLeft ? x0 - TEXT_GAP : x0 + TEXT_GAP;
    const span: [number, number] = isLeft ? [Math.max(from, x0 - wide - TEXT_GAP), x1] : [x0, Math.min(until, Math.max(x1, x0 + wide + TEXT_GAP))];
    const free = (row: number): boolean => (rows[row] ?? []).every(([begin, end]) => span[1] <= begin || span[0] >= end);
    const found = Array.from({ length: most }, (_, row) => row).find(free);
    const row = found ?? most - 1;
    (rows[row] ??= []).push(span);
    const room = found === undefined ? 0 : Math.floor((isLeft ? textX - from : until - textX) / letterPx);
    return { bar, row, x0, x1, textX, isLeft, letters: room < Math.min(bar.text.length, FEWEST_LETTERS) ? 0 : room };
  });
}

/** A finding whose chain names another finding by its id has that one as its cause: the newest that began before it, elsewhere. */
function addArrow(lanes: Map<string, Lane>, order: string[], effect: Finding, sorted: Finding[]): void {
  const codes = new Set(effect.chain.map(({ code }) => code));
  const cause = sorted.findLast((each) => each.subject !== effect.subject && codes.has(each.id) && each.since_realtime_ns <= effect.since_realtime_ns);
  if (cause === undefined || !lanes.has(cause.subject)) return;
  lanes.get(effect.subject)?.arrows.push({
    fromLane: order.indexOf(cause.subject), toLane: order.indexOf(effect.subject), atNs: cause.since_realtime_ns, toNs: effect.since_realtime_ns,
  });
}

export interface Flag {
  atMs: number;
  text: string;
}

/** What each kind of O-RAN's events is about, before its value. */
const FLAG_WORDS: Record<string, string> = {
  "event.sync.sync-status.synchronization-state-change": "", "event.sync.ptp-status.ptp-state-change": "",
  "event.sync.ptp-status.ptp-clock-class-change": "clock class ", "event.sync.gnss-status.gnss-state-change": "GNSS ",
};

/** A node's state as the rest of the page names it; the notifications have O-RAN's names. */
const NODE_STATES: Record<string, string> = { LOCKED: "SYNCHRONIZED", FREERUN: "no bound" };

export const stateWord = (type: string, value: string): string =>
  (type === "event.sync.sync-status.synchronization-state-change" ? NODE_STATES[value] : undefined) ?? value;

/** A change of one of these subjects as a flag, which names the subject unless it is the first; none for another one. */
export function flagsOf(event: Pick<CloudEvent, "type" | "subject" | "time" | "data">, subjects: string[]): Flag[] {
  const subject = event.subject ?? subjects[0] ?? "";
  const words = FLAG_WORDS[event.type];
  if (words === undefined || !subjects.includes(subject)) return [];
  const [first] = (event.data.values as { value: unknown }[] | undefined) ?? [];
  if (first === undefined) return [];
  return [{ atMs: Date.parse(event.time), text: `${subject === subjects[0] ? "" : `${subject} `}${words}${stateWord(event.type, String(first.value))}` }];
}
