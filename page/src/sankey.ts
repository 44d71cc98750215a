// Draws the timing chain: width shows the number of nodes, colour the bound.

import { sankey, sankeyLinkHorizontal, type SankeyGraph } from "d3-sankey";
import { LAYERS, type Chain, type ChainLink, type ChainNode } from "./chain.ts";
import { svg } from "./dom.ts";
import { bound } from "./model.ts";
import { letters, scaledHeight } from "./size.ts";

/** The layout writes a `layer` of its own over the chain's. */
type Placed = ChainNode & { stage: number };
type Graph = SankeyGraph<Placed, ChainLink>;
type Stop = Graph["nodes"][number];
/** The height of a picture with many stops, the least one, and what a stop of the fullest column takes at most. */
const HEIGHT = 400, LEAST_HEIGHT = 180, MOST_OF_A_STOP = 70;
const STOP_WIDTH = 12;
/** About the width of a letter at 11 px, and the least distance of two labels. */
const LETTER_PX = 6.1, LABEL_PX = 12;

/** The class of a number of clocks: against the operator's limit where there is one, else by decades. */
export function boundClass(clocks: { nodes: number; without: number; widestNs: number | null }, limitNs: number | null): string {
  if (clocks.widestNs === null || clocks.without === clocks.nodes) return "flow-none";
  if (clocks.without > 0) return "flow-some";
  if (limitNs !== null) return clocks.widestNs > limitNs ? "flow-wide" : "flow-good";
  return clocks.widestNs > 100_000 ? "flow-wide" : "flow-fine";
}

const counted = (clocks: { nodes: number; without: number; widestNs: number | null }): string =>
  `${clocks.nodes} node${clocks.nodes === 1 ? "" : "s"}, widest ${bound(clocks.widestNs)}${clocks.without > 0 ? `, ${clocks.without} without a bound` : ""}`;

export class ChainPicture {
  private drawn = "";

  constructor(private readonly host: SVGSVGElement, private readonly link: (filter: Record<string, string>) => string) {}

  draw(chain: Chain, limitNs: number | null, query: string): void {
    const width = Math.max(300, this.host.clientWidth);
    const height = scaledHeight(chainHeight(chain));
    const drawn = JSON.stringify([chain, limitNs, width, height, query]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.host.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.host.style.height = `${height}px`;
    if (chain.nodes.length === 0) return this.host.replaceChildren();
    const graph = laidOut(chain, width, height);
    const rooms = labelRooms(graph, width);
    const roomOf = (stage: number): number => rooms.get(stage) ?? 0;
    const labelled = labelledStops(graph.nodes);
    this.host.replaceChildren(
      ...graph.links.map((link) => this.linkShape(link, limitNs)),
      ...graph.nodes.map((node) => this.nodeShape(node, limitNs, labelled.has(node) ? roomOf(node.stage) : 0)),
      ...headings(graph, roomOf),
    );
  }

  private linkShape(link: Graph["links"][number], limitNs: number | null): SVGElement {
    const source = link.source as Stop;
    const its = source.stage === 0 ? stopClass(source, limitNs) : boundClass(link, limitNs);
    const shape = svg("path", { d: sankeyLinkHorizontal()(link) ?? "", class: `flow ${its}`, "stroke-width": Math.max(1, link.width ?? 1) });
    shape.append(svg("title", {}, counted(link)));
    return shape;
  }

  private nodeShape(node: Stop, limitNs: number | null, room: number): SVGElement {
    const [x0, x1, y0, y1] = [node.x0 ?? 0, node.x1 ?? 0, node.y0 ?? 0, node.y1 ?? 0];
    const rect = svg("rect", { x: x0, y: y0, width: x1 - x0, height: Math.max(2, y1 - y0), rx: 2, class: `stop ${stopClass(node, limitNs)}` });
    const name = `${node.isBroken ? "✕ " : ""}${node.name}`;
    const text = svg("text", { x: x1 + 5, y: (y0 + y1) / 2, "dominant-baseline": "middle" }, room === 0 ? "" : shortened(name, room));
    const title = svg("title", {}, `${LAYERS[node.stage]} ${node.name}: ${counted(node)}`);
    if (node.filter === null) {
      const group = svg("g");
      group.append(rect, text, title);
      return group;
    }
    const link = svg("a", { href: this.link(node.filter), "aria-label": `${LAYERS[node.stage]} ${node.name}: ${counted(node)}` });
    link.append(rect, text, title);
    return link;
  }
}

/** A source is judged by its own state, and every other stop by the clocks behind it. */
function stopClass(node: Stop, limitNs: number | null): string {
  if (node.isBroken) return "flow-wide";
  return node.stage <= 1 && node.isKnown ? "flow-good" : boundClass(node, limitNs);
}

function headings(graph: Graph, roomOf: (stage: number) => number): SVGElement[] {
  const columns = new Map(graph.nodes.map((node) => [node.stage, node]));
  return [...columns].map(([layer, node]) => svg("text", { x: node.x0 ?? 0, y: letters(11), class: "layer" }, shortened(LAYERS[layer] ?? "", roomOf(layer) + 2)));
}

/** By column, how many letters fit right of it: up to the next one, or to the end. */
function labelRooms(graph: Graph, width: number): Map<number, number> {
  const starts = [...new Map(graph.nodes.map(({ stage, x0 }) => [stage, x0 ?? 0]))].sort(([, a], [, b]) => a - b);
  return new Map(starts.map(([stage, start], at) => {
    const gap = (starts[at + 1]?.[1] ?? width) - start - STOP_WIDTH - 8;
    return [stage, Math.max(3, Math.floor(gap / letters(LETTER_PX)))];
  }));
}

/** The name, or its last part, or the beginning of that. */
export function shortened(name: string, room: number): string {
  if (name.length <= room) return name;
  if (/^[0-9a-f]{6}\.[0-9a-f]{4}\.[0-9a-f]{6}$/.test(name)) return `…${name.slice(1 - room)}`;
  const last = name.split("/").at(-1) ?? name;
  return last.length <= room ? last : `${last.slice(0, Math.max(1, room - 1))}…`;
}

/** The largest stops of each column whose labels do not overlap. */
function labelledStops(stops: Stop[]): Set<Stop> {
  const kept = new Set<Stop>();
  const middle = ({ y0, y1 }: Stop): number => ((y0 ?? 0) + (y1 ?? 0)) / 2;
  for (const stop of stops.toSorted((a, b) => b.nodes - a.nodes)) {
    if ([...kept].every((other) => other.stage !== stop.stage || Math.abs(middle(other) - middle(stop)) >= letters(LABEL_PX))) kept.add(stop);
  }
  return kept;
}

function chainHeight({ nodes }: Chain): number {
  const fullest = Math.max(...LAYERS.map((_, wanted) => nodes.filter(({ layer }) => layer === wanted).length));
  return Math.min(HEIGHT, Math.max(LEAST_HEIGHT, fullest * MOST_OF_A_STOP));
}

function laidOut(chain: Chain, width: number, height: number): Graph {
  const layers = [...new Set(chain.nodes.map(({ layer }) => layer))].sort();
  const right = Math.min(letters(110), width / (layers.length + 0.6));
  const layout = sankey<Placed, ChainLink>()
    .nodeId((node) => node.id)
    .nodeAlign((node) => layers.indexOf(node.layer))
    .nodeWidth(STOP_WIDTH)
    .nodePadding(chain.nodes.length > 40 ? 4 : 8)
    .extent([[1, letters(20)], [width - right, height - 4]]);
  return layout({ nodes: chain.nodes.map((node) => ({ ...node, stage: node.layer })), links: chain.links.map((link) => ({ ...link, value: link.nodes })) });
}
