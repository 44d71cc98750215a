// The findings and the operators' notes of a time range as lanes. Pure.

import type { Finding, Note, Severity } from "./types.ts";

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
  return notes.length === 0 ? [...lanes.values()] : [...lanes.values(), { name: "operators", bars: notes.map(noteBar), arrows: [] }];
}

function noteBar({ kind, author, text, subject, finding, realtime_ns: atNs, until_realtime_ns: untilNs }: Note): LaneBar {
  const about = [finding, subject].filter(Boolean).join(" of ");
  return { fromNs: atNs, toNs: untilNs ?? atNs, isOpen: true, text: `${kind} by ${author}: ${text}`, evidence: about, severity: "note" };
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
