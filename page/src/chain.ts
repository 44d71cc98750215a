// The timing chain of a fleet as a graph: GNSS, grandmasters, boundary clocks, racks, jobs. Pure.

import type { ChainGroup, GrandmasterBrief, JobBrief, Overview } from "./types.ts";

/** How many clocks; how many of them have no bound; the widest bound of the others. */
interface Clocks {
  nodes: number;
  without: number;
  widestNs: number | null;
}

export interface ChainNode extends Clocks {
  id: string;
  layer: number;
  name: string;
  /** The address's filter that a click sets; null: none. */
  filter: Record<string, string> | null;
  /** A source that gives no time now. */
  isBroken: boolean;
  /** A source whose state is polled. */
  isKnown: boolean;
}

export interface ChainLink extends Clocks {
  source: string;
  target: string;
}

export interface Chain {
  nodes: ChainNode[];
  links: ChainLink[];
}

export const LAYERS = ["GNSS", "grandmaster", "boundary clock", "rack", "job"];
const MOST_IN_A_LAYER = 20;

type Stop = Pick<ChainNode, "layer" | "name" | "filter" | "isBroken" | "isKnown">;

/** On a narrow screen the chain leads from grandmaster to rack to job. */
const NARROW_LAYERS = [1, 3, 4];

export function chainOf({ chain, grandmasters, jobs }: Pick<Overview, "chain" | "grandmasters" | "jobs">, isNarrow = false): Chain {
  const names = new Map(grandmasters.flatMap((each) => each.identities.map((identity): [string, GrandmasterBrief] => [identity, each])));
  const places = shortened(chain.map(({ place }) => place));
  const builder = new Builder();
  const ways = chain.map((group) => {
    const stops = stopsOf(group, names.get(group.grandmaster_identity) ?? grandmasters.find(({ name }) => name === group.grandmaster), places);
    return { group, stops: stops.filter(({ layer }) => !isNarrow || NARROW_LAYERS.includes(layer)) };
  });
  const layers = new Set(ways.flatMap(({ stops }) => stops.map(({ layer }) => layer)));
  for (const { group, stops } of ways) builder.add(filled(stops, layers), clocksOf(group));
  addJobs(builder, chain, jobs, places);
  return builder.chain;
}

const clocksOf = (group: ChainGroup): Clocks => ({ nodes: group.nodes, without: group.without_bound, widestNs: group.bound_ns });

function stopsOf(group: ChainGroup, grandmaster: GrandmasterBrief | undefined, places: Map<string, string>): Stop[] {
  const stops: Stop[] = [];
  const name = grandmaster?.name ?? (group.grandmaster || group.grandmaster_identity);
  if (grandmaster && grandmaster.gnss_state !== null) stops.push({ layer: 0, name: `GNSS of ${name}`, filter: null, isBroken: grandmaster.antenna !== null && grandmaster.antenna !== "ok", isKnown: true });
  stops.push({ layer: 1, name: name || "no grandmaster", filter: name ? { grandmaster: name } : null, isBroken: grandmaster !== undefined && (!grandmaster.reachable || grandmaster.clock_state !== "locked"), isKnown: grandmaster !== undefined });
  const parent = group.parent_identity;
  if (parent && parent !== group.grandmaster_identity) stops.push({ layer: 2, name: parent, filter: null, isBroken: false, isKnown: false });
  stops.push(rackStop(group.place, places));
  return stops;
}

const FILLERS: Record<number, string> = { 0: "source not polled", 2: "no boundary clock" };

/** A way that skips a layer gets a stop that says so: every way has the same length, so every layer is one column. */
function filled(stops: Stop[], layers: Set<number>): Stop[] {
  const missing = [...layers].filter((layer) => FILLERS[layer] !== undefined && !stops.some((stop) => stop.layer === layer));
  const fillers = missing.map((layer): Stop => ({ layer, name: FILLERS[layer] ?? "", filter: null, isBroken: false, isKnown: false }));
  return [...stops, ...fillers].toSorted((a, b) => a.layer - b.layer);
}

const rackStop = (place: string, places: Map<string, string>): Stop => ({
  layer: 3, name: places.get(place) || "no place", filter: place ? { topology: places.get(place) ?? place } : null, isBroken: false, isKnown: false,
});

/** The place itself, or, where there are too many, a place above it. */
export function shortened(given: string[]): Map<string, string> {
  let names = new Map(given.map((place) => [place, place]));
  while (new Set(names.values()).size > MOST_IN_A_LAYER) {
    const above = new Map([...names].map(([place, name]) => [place, name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : name]));
    if (new Set(above.values()).size === new Set(names.values()).size) break;
    names = above;
  }
  return names;
}

/** From each rack to the jobs that have ranks there. A node that runs several ranks counts once. */
function addJobs(builder: Builder, chain: ChainGroup[], jobs: JobBrief[], places: Map<string, string>): void {
  if (jobs.length === 0) return;
  const racks = new Map<string, Clocks>();
  for (const group of chain) racks.set(group.place, summed(racks.get(group.place), clocksOf(group)));
  for (const [place, clocks] of racks) {
    let left = clocks.nodes;
    for (const job of jobs) {
      const nodes = Math.min(left, job.places[place] ?? 0);
      if (nodes === 0) continue;
      left -= nodes;
      builder.link(rackStop(place, places), { layer: 4, name: job.job, filter: null, isBroken: false, isKnown: false }, share(clocks, nodes));
    }
    if (left > 0) builder.link(rackStop(place, places), { layer: 4, name: "no job", filter: null, isBroken: false, isKnown: false }, share(clocks, left));
  }
}

/** Which of a rack's clocks a job has is not in the overview: a share keeps the colour of the rack. */
const share = (clocks: Clocks, nodes: number): Clocks => ({ ...clocks, nodes, without: Math.round((clocks.without * nodes) / clocks.nodes) });

const summed = (before: Clocks | undefined, more: Clocks): Clocks => ({
  nodes: (before?.nodes ?? 0) + more.nodes,
  without: (before?.without ?? 0) + more.without,
  widestNs: before === undefined || before.widestNs === null ? more.widestNs : Math.max(before.widestNs, more.widestNs ?? 0),
});

class Builder {
  private readonly nodes = new Map<string, ChainNode>();
  private readonly links = new Map<string, ChainLink>();

  add(stops: Stop[], clocks: Clocks): void {
    stops.forEach((stop, at) => {
      this.count(stop, clocks);
      const next = stops[at + 1];
      if (next !== undefined) this.connect(stop, next, clocks);
    });
  }

  /** A link to a stop of the last layer, which counts there and not again at its start. */
  link(from: Stop, to: Stop, clocks: Clocks): void {
    this.count(to, clocks);
    this.connect(from, to, clocks);
  }

  private count(stop: Stop, clocks: Clocks): void {
    const id = idOf(stop);
    this.nodes.set(id, { ...stop, id, ...summed(this.nodes.get(id), clocks) });
  }

  private connect(from: Stop, to: Stop, clocks: Clocks): void {
    const [source, target] = [idOf(from), idOf(to)];
    const key = JSON.stringify([source, target]);
    this.links.set(key, { source, target, ...summed(this.links.get(key), clocks) });
  }

  get chain(): Chain {
    return { nodes: [...this.nodes.values()], links: [...this.links.values()] };
  }
}

const idOf = ({ layer, name }: Stop): string => `${layer} ${name}`;
