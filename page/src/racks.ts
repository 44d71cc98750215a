// Racks over time: the widest bound of each rack, as the map gives it, kept while the page is open. Pure.

import { NOTHING, NO_BOUND, type Matrix } from "./heat.ts";
import { quantile } from "./track.ts";
import type { FleetMap, MapNode } from "./types.ts";

/** The colour scale: 100 ns to 1 ms, by its logarithm. */
const LOWEST = 2, HIGHEST = 6;
const MOST_COLUMNS = 400;

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
    if (this.columns.length > MOST_COLUMNS) this.columns.shift();
  }

  /** From `fromMs` to `toMs`; a step without a reading is a gap. */
  matrix(fromMs: number, toMs: number, label: (atMs: number) => string): Matrix & { atMs: number[]; places: string[] } {
    const shown = this.columns.filter(({ atMs }) => atMs >= fromMs - this.stepMs && atMs <= toMs);
    const racks = [...new Set(shown.flatMap(({ bounds }) => [...bounds.keys()]))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const first = shown[0]?.atMs ?? 0;
    const width = shown.length === 0 ? 0 : ((shown.at(-1)?.atMs ?? 0) - first) / this.stepMs + 1;
    const cells = new Float32Array(racks.length * width).fill(NOTHING);
    for (const { atMs, bounds } of shown) {
      const column = (atMs - first) / this.stepMs;
      racks.forEach((rack, row) => {
        const ns = bounds.get(rack);
        if (ns !== undefined) cells[row * width + column] = ns === null ? NO_BOUND : boundShare(ns);
      });
    }
    const atMs = Array.from({ length: width }, (_, column) => first + column * this.stepMs);
    return { rows: racks.map((rack) => rack.split("/").at(-1) || "no place"), columns: atMs.map(label), cells, atMs, places: racks };
  }
}

function rackBounds(map: FleetMap): RackBounds {
  return new Map(Object.entries(map.places).map(([place, nodes]) => [
    place, nodes.every(isBounded) ? Math.max(...nodes.map(([, , ns]) => ns ?? 0)) : null,
  ]));
}

const wider = (before: number | null | undefined, ns: number | null): number | null =>
  before === undefined ? ns : before === null || ns === null ? null : Math.max(before, ns);
