// Racks over time: the widest bound of each rack, from the hub's store, and as the map gives it while the page is open. Pure.

import { NOTHING, NO_BOUND, type Matrix } from "./heat.ts";
import { quantile } from "./track.ts";
import type { FleetMap, MapNode } from "./types.ts";

/** The colour scale: 100 ns to 1 ms, by its logarithm. */
const LOWEST = 2, HIGHEST = 6;
const MOST_READINGS = 400;
const MOST_COLUMNS = 240;

/** The stored past: step k begins at `begin_ms` + k * `step_ms`; null: nothing is known. */
export interface RacksAnswer {
  begin_ms: number;
  step_ms: number;
  steps: number;
  racks: string[];
  widest_bound_ns: (number | null)[][];
  without_bound: (number | null)[][];
}

/** A bound on the colour scale, 0 to 1. */
export const boundShare = (ns: number): number => Math.min(1, Math.max(0, (Math.log10(Math.max(1, ns)) - LOWEST) / (HIGHEST - LOWEST)));

const isBounded = ([, status, ns]: MapNode): boolean => ns !== null && status !== "UNKNOWN" && status !== "DISRUPTED";

export interface FleetNumbers {
  p50Ns: number | null;
  p99Ns: number | null;
  worstNs: number | null;
  without: number;
}

/** The bounds of all nodes in four numbers. */
export function fleetNumbers(map: FleetMap): FleetNumbers {
  const nodes = Object.values(map.places).flat();
  const known = nodes.filter(isBounded).map(([, , ns]) => ns as number).sort((a, b) => a - b);
  return { p50Ns: quantile(known, 0.5), p99Ns: quantile(known, 0.99), worstNs: known.at(-1) ?? null, without: nodes.length - known.length };
}

/** null: no node of the rack has a bound. */
type RackBounds = Map<string, number | null>;

export class RackHistory {
  private readonly columns: { atMs: number; bounds: RackBounds }[] = [];

  constructor(private readonly stepMs: number) {}

  /** The widest of all readings within a step is kept; a rack with a node without a bound has none. */
  add(atMs: number, map: FleetMap): void {
    const start = Math.floor(atMs / this.stepMs) * this.stepMs;
    const last = this.columns.at(-1);
    const bounds = rackBounds(map);
    if (last?.atMs === start) last.bounds = new Map([...last.bounds, ...[...bounds].map(([rack, ns]): [string, number | null] => [rack, wider(last.bounds.get(rack), ns)])]);
    else if (last === undefined || start > last.atMs) this.columns.push({ atMs: start, bounds });
    if (this.columns.length > MOST_READINGS) this.columns.shift();
  }

  /** All of `fromMs` to `toMs`, as the other charts show it; a step without a reading is a gap. */
  matrix(fromMs: number, toMs: number, label: (atMs: number) => string, stored: RacksAnswer | null = null): Matrix & { atMs: number[]; places: string[] } {
    const stepMs = Math.ceil((toMs - fromMs) / MOST_COLUMNS / this.stepMs) * this.stepMs;
    const first = Math.floor(fromMs / stepMs) * stepMs;
    const width = Math.max(1, Math.ceil((toMs - first) / stepMs));
    const racks = new Map<string, (number | null | undefined)[]>();
    const put = (rack: string, column: number, ns: number | null): void => {
      const row = racks.get(rack) ?? Array.from<number | null | undefined>({ length: width });
      racks.set(rack, row);
      row[column] = wider(row[column], ns);
    };
    if (stored !== null) eachStored(stored, (rack, atMs, ns) => {
      const last = Math.min(width, Math.ceil((atMs + stored.step_ms - first) / stepMs));
      for (let column = Math.max(0, Math.floor((atMs - first) / stepMs)); column < last; column += 1) put(rack, column, ns);
    });
    for (const { atMs, bounds } of this.columns) {
      const column = Math.floor((atMs - first) / stepMs);
      if (column >= 0 && column < width) for (const [rack, ns] of bounds) put(rack, column, ns);
    }
    const places = [...racks.keys()].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const cells = Float32Array.from(places.flatMap((rack) => Array.from(racks.get(rack) ?? [], cellOf)));
    const atMs = Array.from({ length: width }, (_, column) => first + column * stepMs);
    return { rows: shortNames(places), columns: atMs.map(label), cells, atMs, places };
  }
}

const cellOf = (ns: number | null | undefined): number => (ns === undefined ? NOTHING : ns === null ? NO_BOUND : boundShare(ns));

function eachStored({ begin_ms: begin, step_ms: step, steps, racks, widest_bound_ns: widest, without_bound: without }: RacksAnswer, put: (rack: string, atMs: number, ns: number | null) => void): void {
  racks.forEach((rack, row) => {
    for (let at = 0; at < steps; at += 1) {
      const [ns, none] = [widest[row]?.[at] ?? null, without[row]?.[at] ?? 0];
      if (none > 0 || ns !== null) put(rack, begin + at * step, none > 0 ? null : ns);
    }
  });
}

/** The last part of each place, or the whole one where two places share it. */
export function shortNames(places: string[]): string[] {
  const last = places.map((place) => place.split("/").at(-1) || "no place");
  return last.map((name, at) => (last.indexOf(name) === last.lastIndexOf(name) ? name : places[at] ?? name));
}

function rackBounds(map: FleetMap): RackBounds {
  return new Map(Object.entries(map.places).map(([place, nodes]) => [
    place, nodes.every(isBounded) ? Math.max(...nodes.map(([, , ns]) => ns ?? 0)) : null,
  ]));
}

const wider = (before: number | null | undefined, ns: number | null): number | null =>
  before === undefined ? ns : before === null || ns === null ? null : Math.max(before, ns);
