// Draws the timing chain: width shows the number of nodes, colour the bound.

import { sankey, sankeyLinkHorizontal, type SankeyGraph } from "d3-sankey";
import { LAYERS, type Chain, type ChainLink, type ChainNode } from "./chain.ts";
import { svg } from "./dom.ts";
import { bound } from "./model.ts";

type Graph = SankeyGraph<ChainNode, ChainLink>;
const HEIGHT = 400;

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
    const width = Math.max(320, this.host.clientWidth);
    const drawn = JSON.stringify([chain, limitNs, width, query]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.host.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (chain.nodes.length === 0) return this.host.replaceChildren();
    const graph = laidOut(chain, width);
    this.host.replaceChildren(
      ...graph.links.map((link) => this.linkShape(link, limitNs)),
      ...graph.nodes.map((node) => this.nodeShape(node, limitNs, width)),
      ...this.headings(graph),
    );
  }

  private linkShape(link: Graph["links"][number], limitNs: number | null): SVGElement {
    const shape = svg("path", { d: sankeyLinkHorizontal()(link) ?? "", class: `flow ${boundClass(link, limitNs)}`, "stroke-width": Math.max(1, link.width ?? 1) });
    shape.append(svg("title", {}, counted(link)));
    return shape;
  }

  private nodeShape(node: Graph["nodes"][number], limitNs: number | null, width: number): SVGElement {
    const [x0, x1, y0, y1] = [node.x0 ?? 0, node.x1 ?? 0, node.y0 ?? 0, node.y1 ?? 0];
    const isLast = x1 > width * 0.9;
    const rect = svg("rect", { x: x0, y: y0, width: x1 - x0, height: Math.max(2, y1 - y0), class: `stop ${node.isBroken ? "flow-broken" : boundClass(node, limitNs)}` });
    const text = svg("text", { x: isLast ? x0 - 5 : x1 + 5, y: (y0 + y1) / 2, "text-anchor": isLast ? "end" : "start", "dominant-baseline": "middle" }, `${node.name}${node.isBroken ? " ✕" : ""}`);
    const title = svg("title", {}, `${LAYERS[node.layer]} ${node.name}: ${counted(node)}`);
    if (node.filter === null) {
      const group = svg("g");
      group.append(rect, text, title);
      return group;
    }
    const link = svg("a", { href: this.link(node.filter), "aria-label": `${LAYERS[node.layer]} ${node.name}: ${counted(node)}` });
    link.append(rect, text, title);
    return link;
  }

  private headings(graph: Graph): SVGElement[] {
    const columns = new Map(graph.nodes.map((node) => [node.layer, node]));
    return [...columns].map(([layer, node]) => svg("text", { x: layer === 4 ? (node.x1 ?? 0) : (node.x0 ?? 0), y: 10, class: "layer", "text-anchor": layer === 4 ? "end" : "start" }, LAYERS[layer] ?? ""));
  }
}

function laidOut(chain: Chain, width: number): Graph {
  const layers = [...new Set(chain.nodes.map(({ layer }) => layer))].sort();
  const layout = sankey<ChainNode, ChainLink>()
    .nodeId((node) => node.id)
    .nodeAlign((node) => layers.indexOf(node.layer))
    .nodeWidth(12)
    .nodePadding(chain.nodes.length > 40 ? 4 : 8)
    .extent([[1, 20], [width - 1, HEIGHT - 4]]);
  return layout({ nodes: chain.nodes.map((node) => ({ ...node })), links: chain.links.map((link) => ({ ...link, value: link.nodes })) });
}
