// A job's newest steps: how late each rank was, and where the time of a step went. Pure.

import { groupBy } from "./track.ts";
import { EARLY, NOTHING, WITHIN_ERROR } from "./heat.ts";
import { duration, roundUp } from "./model.ts";
import type { StepMark, Sync, Window } from "./types.ts";

/** The daemon's answer: base64 of little-endian int32, a row for each step and a number for each rank, in `unit_ns`. */
export interface LatenessAnswer {
  as_of_realtime_ns: number;
  ranks: number[];
  nodes: string[];
  steps: number[];
  begins_ms: (number | null)[];
  error_ns: (number | null)[];
  unit_ns: number;
  lateness: string;
}

export interface Lateness {
  steps: number[];
  /** When each step's first rank arrived, Unix ms; NaN: unknown. */
  beginsMs: number[];
  ranks: number[];
  nodes: string[];
  /** Rank by rank, then step by step: ns after the median rank at the synchronization with the largest skew; NaN: unknown. */
  lateNs: Float64Array;
  /** The error of each step's differences, ns; NaN: the clocks do not compare. */
  errorNs: Float64Array;
}

const UNKNOWN = -(2 ** 31);

/** Of the steps that begin within these limits. A step whose begin is not known is in none. */
export function latenessOf({ ranks, nodes, steps, begins_ms: begins, error_ns: errors, unit_ns: unit, lateness }: LatenessAnswer, [fromMs, toMs]: [number, number]): Lateness {
  const bytes = Uint8Array.from(atob(lateness), (sign) => sign.charCodeAt(0));
  const given = new DataView(bytes.buffer);
  const beginsMs = begins.map((begin) => begin ?? NaN);
  const shown = [...steps.keys()].filter((at) => (beginsMs[at] as number) >= fromMs && (beginsMs[at] as number) <= toMs);
  const lateNs = new Float64Array(ranks.length * shown.length).fill(NaN);
  shown.forEach((step, column) => {
    for (let rank = 0; rank < ranks.length; rank += 1) {
      const value = given.getInt32(4 * (step * ranks.length + rank), true);
      if (value !== UNKNOWN) lateNs[rank * shown.length + column] = value * unit;
    }
  });
  return {
    steps: shown.map((at) => steps[at] as number), beginsMs: shown.map((at) => beginsMs[at] as number), ranks, nodes, lateNs,
    errorNs: Float64Array.from(shown, (at) => errors[at] ?? NaN),
  };
}

/** The colour scale is logarithmic, from 100 us to 100 ms. */
const LOWEST = 5, HIGHEST = 8;
export const lateShare = (ns: number): number => Math.min(1, Math.max(0, (Math.log10(Math.max(1, ns)) - LOWEST) / (HIGHEST - LOWEST)));

/** The cells of the heat map: lateness within the clocks' error is grey, and so is a lateness whose error is not known. */
export function latenessCells({ lateNs, errorNs }: Pick<Lateness, "lateNs" | "errorNs">): Float32Array {
  return Float32Array.from(lateNs, (late, at) => {
    if (Number.isNaN(late)) return NOTHING;
    const error = errorNs[at % errorNs.length] as number;
    return late > error ? lateShare(late) : late < -error ? EARLY : WITHIN_ERROR;
  });
}

/** "58.0 µs before the median rank, ±5.60 µs". */
export function latenessText(lateNs: number, errorNs: number): string {
  if (Number.isNaN(lateNs)) return "unknown";
  const error = Number.isNaN(errorNs) ? "error unknown" : `±${duration(errorNs, roundUp)}${Math.abs(lateNs) <= errorNs ? ", within the clocks' error" : ""}`;
  return `${duration(Math.abs(lateNs))} ${lateNs < 0 ? "before" : "after"} the median rank, ${error}`;
}

/** The parts of a step's length, ns; the mean over its ranks. They add up to it. */
export interface StepParts {
  step: number;
  computeNs: number;
  /** The rank computes, and a transfer runs meanwhile; 0 where no rank marked when its gradients were ready. */
  hiddenNs: number;
  exposedNs: number;
  waitNs: number;
  /** The rank that the others waited for; null: within the clocks' error, or not known. */
  lastRank: number | null;
}

type Span = [fromNs: number, toNs: number];

/**
 * Where the time of each step went. Until its gradients are ready a rank computes, and what is transferred meanwhile is
 * hidden. After that, of its synchronizations, the time in which some transfer runs is exposed, and the time in which none
 * runs, since a rank is still missing, is waiting. What remains is computing.
 */
export function stepParts(window: Pick<Window, "syncs" | "steps">): StepParts[] {
  const marks = groupBy(window.steps ?? [], ({ step }) => step);
  const steps = groupBy(window.syncs, ({ step }) => step);
  return [...steps].sort(([a], [b]) => a - b).map(([step, syncs]) => {
    const ranks = [...new Set(syncs.flatMap(({ arrivals }) => arrivals.filter(({ clock }) => clock !== null).map(({ rank }) => rank)))];
    const parts = ranks.map((rank) => rankParts(rank, syncs, marks.get(step)?.find((mark) => mark.rank === rank)));
    const mean = (read: (part: RankParts) => number): number => parts.reduce((sum, part) => sum + read(part), 0) / Math.max(1, parts.length);
    return {
      step, computeNs: mean((part) => part.computeNs), hiddenNs: mean((part) => part.hiddenNs), exposedNs: mean((part) => part.exposedNs),
      waitNs: mean((part) => part.waitNs), lastRank: waitedFor(syncs),
    };
  });
}

type RankParts = Omit<StepParts, "step" | "lastRank">;

function rankParts(rank: number, syncs: Sync[], mark: StepMark | undefined): RankParts {
  const [transfers, within]: [Span[], Span[]] = [[], []];
  for (const { arrivals } of syncs) {
    const own = arrivals.find((each) => each.rank === rank && each.clock !== null);
    if (own === undefined) continue;
    const last = Math.max(...arrivals.filter(({ clock }) => clock !== null).map(({ arrival_ns: at }) => at));
    within.push([own.arrival_ns, own.end_ns]);
    transfers.push([Math.min(last, own.end_ns), own.end_ns]);
  }
  const beginNs = mark?.arrival_ns ?? Math.min(...within.map(([from]) => from));
  const endNs = mark?.end_ns ?? Math.max(...within.map(([, to]) => to));
  const readyNs = Math.min(endNs, mark?.ready_ns ?? beginNs);
  const hiddenNs = covered(transfers, [beginNs, readyNs]);
  const exposedNs = covered(transfers, [readyNs, endNs]);
  const waitNs = covered(within, [readyNs, endNs]) - exposedNs;
  return { hiddenNs, exposedNs, waitNs, computeNs: Math.max(0, endNs - beginNs - hiddenNs - exposedNs - waitNs) };
}

/** How much of a span others cover; what several of them cover counts once. */
export function covered(spans: Span[], [fromNs, toNs]: Span): number {
  let [sum, untilNs] = [0, fromNs];
  for (const [begin, end] of spans.toSorted(([a], [b]) => a - b)) {
    const [low, high] = [Math.max(begin, untilNs), Math.min(end, toNs)];
    if (high <= low) continue;
    sum += high - low;
    untilNs = high;
  }
  return sum;
}

/** The rank that certainly arrived last at the synchronization that made the others wait the longest. */
function waitedFor(syncs: Sync[]): number | null {
  const longest = syncs.map(({ arrivals }) => lastOf(arrivals)).toSorted((a, b) => b.waitNs - a.waitNs)[0];
  return longest?.rank ?? null;
}

function lastOf(arrivals: Sync["arrivals"]): { waitNs: number; rank: number | null } {
  const known = arrivals.filter(({ clock }) => clock !== null).toSorted((a, b) => b.arrival_ns - a.arrival_ns);
  const [last, second] = known;
  if (last === undefined || second === undefined) return { waitNs: 0, rank: null };
  const waitNs = known.reduce((total, { arrival_ns: at }) => total + last.arrival_ns - at, 0) / known.length;
  const isCertain = last.error_ns !== null && last.arrival_ns - second.arrival_ns > last.error_ns + (second.error_ns ?? Infinity);
  return { waitNs, rank: isCertain ? last.rank : null };
}
