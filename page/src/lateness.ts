// A job's newest steps: how late each rank was, and where the time of a step went. Pure.

import { groupBy } from "./track.ts";
import { NOTHING, WITHIN_ERROR } from "./heat.ts";
import type { Sync, Window } from "./types.ts";

/** The daemon's answer: base64 of little-endian int32, a row for each step and a number for each rank, in `unit_ns`. */
export interface LatenessAnswer {
  ranks: number[];
  nodes: string[];
  steps: number[];
  error_ns: (number | null)[];
  unit_ns: number;
  lateness: string;
}

export interface Lateness {
  steps: number[];
  ranks: number[];
  nodes: string[];
  /** Rank by rank, then step by step: ns after the median rank at the synchronization with the largest skew; NaN: unknown. */
  lateNs: Float64Array;
  /** The error of each step's differences, ns; NaN: the clocks do not compare. */
  errorNs: Float64Array;
}

const UNKNOWN = -(2 ** 31);

export function latenessOf({ ranks, nodes, steps, error_ns: errors, unit_ns: unit, lateness }: LatenessAnswer): Lateness {
  const bytes = Uint8Array.from(atob(lateness), (sign) => sign.charCodeAt(0));
  const given = new DataView(bytes.buffer);
  const lateNs = new Float64Array(ranks.length * steps.length).fill(NaN);
  for (let step = 0; step < steps.length; step += 1) {
    for (let rank = 0; rank < ranks.length; rank += 1) {
      const value = given.getInt32(4 * (step * ranks.length + rank), true);
      if (value !== UNKNOWN) lateNs[rank * steps.length + step] = value * unit;
    }
  }
  return { steps, ranks, nodes, lateNs, errorNs: Float64Array.from(errors, (error) => error ?? NaN) };
}

/** The colour scale is logarithmic, from 10 us to 100 ms. */
const LOWEST = 4, HIGHEST = 8;
export const lateShare = (ns: number): number => Math.min(1, Math.max(0, (Math.log10(Math.max(1, ns)) - LOWEST) / (HIGHEST - LOWEST)));

/** The cells of the heat map: lateness within the clocks' error is grey, and so is a lateness whose error is not known. */
export function latenessCells({ lateNs, errorNs }: Pick<Lateness, "lateNs" | "errorNs">): Float32Array {
  return Float32Array.from(lateNs, (late, at) => {
    if (Number.isNaN(late)) return NOTHING;
    return late > (errorNs[at % errorNs.length] as number) ? lateShare(late) : WITHIN_ERROR;
  });
}

export interface StepParts {
  step: number;
  computeNs: number;
  transferNs: number;
  waitNs: number;
  /** The rank that the others waited for; null: within the clocks' error, or not known. */
  lastRank: number | null;
}

/**
 * Where the time of each step went, as the mean over the ranks: from its begin to its end, less its synchronizations,
 * is computing; of a synchronization the time until the last rank arrived is waiting, and the rest is transfer.
 */
export function stepParts(window: Pick<Window, "syncs" | "steps">): StepParts[] {
  const lengths = new Map<number, number[]>();
  for (const { step, arrival_ns: from, end_ns: to } of window.steps ?? []) lengths.set(step, [...(lengths.get(step) ?? []), to - from]);
  const steps = groupBy(window.syncs, ({ step }) => step);
  return [...steps].sort(([a], [b]) => a - b).map(([step, syncs]) => {
    const parts = syncs.map(syncParts);
    const sum = (read: (part: SyncParts) => number): number => parts.reduce((total, part) => total + read(part), 0);
    const [waitNs, transferNs] = [sum(({ waitNs: ns }) => ns), sum(({ transferNs: ns }) => ns)];
    const own = lengths.get(step) ?? [];
    const lengthNs = own.length > 0 ? own.reduce((a, b) => a + b, 0) / own.length : waitNs + transferNs;
    const longest = parts.toSorted((a, b) => b.waitNs - a.waitNs)[0];
    return { step, computeNs: Math.max(0, lengthNs - waitNs - transferNs), transferNs, waitNs, lastRank: longest?.lastRank ?? null };
  });
}

interface SyncParts {
  waitNs: number;
  transferNs: number;
  lastRank: number | null;
}

function syncParts({ arrivals }: Sync): SyncParts {
  const known = arrivals.filter(({ clock }) => clock !== null).toSorted((a, b) => b.arrival_ns - a.arrival_ns);
  const [last, second] = known;
  if (last === undefined) return { waitNs: 0, transferNs: 0, lastRank: null };
  const mean = (read: (each: (typeof known)[number]) => number): number => known.reduce((total, each) => total + read(each), 0) / known.length;
  const waitNs = mean(({ arrival_ns: at }) => last.arrival_ns - at);
  const transferNs = mean(({ end_ns: end }) => Math.max(0, end - last.arrival_ns));
  const isCertain = second !== undefined && last.error_ns !== null && last.arrival_ns - second.arrival_ns > last.error_ns + (second.error_ns ?? Infinity);
  return { waitNs, transferNs, lastRank: isCertain ? last.rank : null };
}
