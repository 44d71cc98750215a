// The fleet as a picture: one block per rack, one cell per node. Colour and shape both show the status, so colour alone decides nothing.

import { groupBy } from "../track.ts";
import { colour, onTheme } from "../colours.ts";
import { byId, h, put, putChildren } from "../dom.ts";
import { STATUSES, STATUS_SIGNS, bound } from "../model.ts";
import { place } from "../place.ts";
import type { FleetMap, MapNode, Status } from "../types.ts";

const MAX_BLOCKS = 600;
/** Nodes without a place form blocks of this many, by name. */
const NODES_A_BLOCK = 100;
/** A cell's side in pixels, for up to so many nodes. */
const CELL_SIZES: [most: number, side: number][] = [[300, 18], [2_000, 11], [Infinity, 6]];
const GAP = 1;
const DECADES = [1e3, 1e4, 1e5];

interface Place {
  name: string;
  nodes: MapNode[];
  isPlace: boolean;
}

interface Block {
  element: HTMLLIElement;
  link: HTMLAnchorElement;
  canvas: HTMLCanvasElement;
  drawn: string;
  nodes: MapNode[];
}

export class MapPicture {
  private blocks = new Map<string, Block>();
  private readonly halls = new Map<string, HTMLElement>();
  private columns = 10;
  private cell = 18;
  private last: FleetMap | null = null;

  constructor() {
    onTheme(() => {
      this.blocks.clear();
      if (this.last !== null) this.update(this.last);
    });
  }

  /** Redraws only the blocks that changed. */
  update(body: FleetMap): void {
    this.last = body;
    const places = blocksOf(body.places);
    byId("fleet-picture").hidden = places.length === 0;
    const largest = Math.max(1, ...places.map(({ nodes }) => nodes.length));
    this.columns = Math.max(4, Math.ceil(Math.sqrt(largest * 1.6)));
    const nodes = places.reduce((sum, each) => sum + each.nodes.length, 0);
    this.cell = CELL_SIZES.find(([most]) => nodes <= most)?.[1] ?? 6;
    this.blocks = new Map(places.map((each) => [each.name, this.block(each)]));
    putChildren(byId("fleet-map"), this.withHalls());
  }

  private block({ name, nodes, isPlace }: Place): Block {
    const block = this.blocks.get(name) ?? newBlock();
    const drawn = JSON.stringify([nodes, this.columns, this.cell]);
    if (block.drawn === drawn) return block;
    Object.assign(block, { drawn, nodes });
    block.link.href = place.link("fleet", null, { topology: isPlace ? name : null });
    put(block.link, name.split("/").at(-1) ?? name);
    block.element.className = nodes.some(([, status]) => status !== "SYNCHRONIZED") ? "block troubled" : "block";
    block.canvas.setAttribute("aria-label", `${name}: ${blockSummary(nodes)}`);
    block.link.title = `${name}: ${blockSummary(nodes)}`;
    draw(block.canvas, nodes, this.columns, this.cell);
    this.attachMouse(block);
    return block;
  }

  /** The cell under the mouse names its node; a click opens that node. */
  private attachMouse(block: Block): void {
    const nodeAt = ({ offsetX, offsetY }: MouseEvent): MapNode | undefined =>
      block.nodes[Math.floor(offsetY / (this.cell + GAP)) * this.columns + Math.floor(offsetX / (this.cell + GAP))];
    block.canvas.onmousemove = (event) => {
      const node = nodeAt(event);
      block.canvas.title = node ? `${node[0]}: ${STATUS_SIGNS[node[1]]} ${node[1]}, ${bound(node[2])}` : "";
    };
    block.canvas.onclick = (event) => {
      const node = nodeAt(event);
      if (node) place.go(place.link("node", node[0]));
    };
  }

  /** With racks in several halls, each hall is a group with its name. */
  private withHalls(): HTMLElement[] {
    const halls = groupBy(this.blocks, ([name]) => name.split("/").slice(0, -1).join("/"));
    if (halls.size < 2) return [...this.blocks.values()].map(({ element }) => element);
    return [...halls].flatMap(([hall, its]) => {
      const group = this.halls.get(hall) ?? h("li", { class: "hall" }, h("b", {}, hall), h("ul"));
      this.halls.set(hall, group);
      putChildren(group.lastElementChild as Element, its.map(([, { element }]) => element));
      return [group];
    });
  }
}

/** The places in order. Too many blocks are merged one level up. */
function blocksOf(places: FleetMap["places"]): Place[] {
  let named = Object.entries(places).flatMap(([name, nodes]): Place[] => (name ? [{ name, nodes, isPlace: true }] : chunks(nodes)));
  while (named.length > MAX_BLOCKS) {
    const parents = groupBy(named, ({ name }) => name.split("/").slice(0, -1).join("/"));
    if (parents.size >= named.length || parents.has("")) break;
    named = [...parents].map(([name, parts]) => ({ name, nodes: parts.flatMap(({ nodes }) => nodes), isPlace: true }));
  }
  return named.slice(0, MAX_BLOCKS).toSorted((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
}

function chunks(nodes: MapNode[]): Place[] {
  return Array.from({ length: Math.ceil(nodes.length / NODES_A_BLOCK) }, (_, index) => {
    const part = nodes.slice(index * NODES_A_BLOCK, (index + 1) * NODES_A_BLOCK);
    return { name: `${part[0]?.[0]} …`, nodes: part, isPlace: false };
  });
}

function newBlock(): Block {
  const [link, canvas] = [h("a"), h("canvas", { role: "img" })];
  return { element: h("li", {}, link, canvas), link, canvas, drawn: "", nodes: [] };
}

/** "38 SYNCHRONIZED, 2 HOLDOVER; widest ±3.10 µs". */
function blockSummary(nodes: MapNode[]): string {
  const counts = STATUSES.map((status): [number, Status] => [nodes.filter(([, its]) => its === status).length, status]).filter(([nodes]) => nodes > 0);
  const widest = Math.max(-1, ...nodes.map(([, , ns]) => ns ?? -1));
  return `${counts.map((pair) => pair.join(" ")).join(", ")}${widest < 0 ? "" : `; widest ${bound(widest)}`}`;
}

/** Filled: synchronized, paler with a wider bound. Lower half: holdover. Crossed: disrupted. Hollow: unknown. */
function draw(canvas: HTMLCanvasElement, nodes: MapNode[], columns: number, cell: number): void {
  const ratio = window.devicePixelRatio || 1;
  const step = cell + GAP;
  const [width, height] = [columns * step, Math.ceil(nodes.length / columns) * step];
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  pen.scale(ratio, ratio);
  nodes.forEach(([, status, ns], index) => drawCell(pen, (index % columns) * step, Math.floor(index / columns) * step, cell, status, ns));
}

const STATUS_COLOURS: Record<Status, string> = { SYNCHRONIZED: "fine-1", HOLDOVER: "warn", DISRUPTED: "bad", UNKNOWN: "no-bound" };

function drawCell(pen: CanvasRenderingContext2D, x: number, y: number, cell: number, status: Status, ns: number | null): void {
  const shade = DECADES.filter((limit) => ns === null || ns > limit).length;
  pen.fillStyle = pen.strokeStyle = colour(status === "SYNCHRONIZED" ? `fine-${shade + 1}` : STATUS_COLOURS[status]);
  if (status === "SYNCHRONIZED" || status === "DISRUPTED") pen.fillRect(x, y, cell, cell);
  else pen.strokeRect(x + 0.75, y + 0.75, cell - 1.5, cell - 1.5);
  if (status === "HOLDOVER") pen.fillRect(x, y + cell / 2, cell, cell / 2);
  if (status !== "DISRUPTED") return;
  pen.strokeStyle = colour("card");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const [from, to] of [[1, cell - 1], [cell - 1, 1]] as const) {
    pen.moveTo(x + from, y + 1);
    pen.lineTo(x + to, y + cell - 1);
  }
  pen.stroke();
  pen.lineWidth = 1;
}
