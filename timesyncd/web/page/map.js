// The fleet as a picture: one block per rack, one cell per node. Colour and shape both show the status, so colour alone decides nothing.

import { Poll, hashWith } from "./api.js";
import { byId, put, putChildren } from "./dom.js";
import { STATUS_SIGNS, bound } from "./model.js";

const MAP_EVERY_MS = 10_000;
const MAX_BLOCKS = 600;
/** Nodes without a place form blocks of this many, by name. */
const NODES_A_BLOCK = 100;
/** A cell's side in pixels, for up to so many nodes. */
const CELL_SIZES = [[300, 18], [2_000, 11], [Infinity, 6]];
const GAP = 1;
const STATUSES = ["SYNCHRONIZED", "HOLDOVER", "DISRUPTED", "UNKNOWN"];
const DECADES = [1e3, 1e4, 1e5];

export class FleetMap {
  constructor() {
    this.blocks = new Map();
    this.columns = 10;
    this.cell = CELL_SIZES[0][1];
    this.poll = new Poll(MAP_EVERY_MS, (body) => this.update(body));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.blocks.clear());
  }

  tick(isFleet, now) {
    this.poll.tick(isFleet ? "api/v1/fleet/map" : null, now);
  }

  /** Redraws only the blocks that changed. */
  update(body) {
    const places = body ? blocksOf(body.places) : [];
    byId("fleet-picture").hidden = places.length === 0;
    const largest = Math.max(1, ...places.map(([, nodes]) => nodes.length));
    this.columns = Math.max(4, Math.ceil(Math.sqrt(largest * 1.6)));
    const count = places.reduce((sum, [, nodes]) => sum + nodes.length, 0);
    this.cell = CELL_SIZES.find(([most]) => count <= most)[1];
    const colours = statusColours();
    this.blocks = new Map(places.map(([place, nodes]) => [place, this.block(place, nodes, colours)]));
    putChildren(byId("fleet-map"), withHallHeadings(this.blocks));
  }

  block(place, nodes, colours) {
    const block = this.blocks.get(place) ?? newBlock();
    const drawn = JSON.stringify([nodes, this.columns, this.cell]);
    if (block.drawn === drawn) return block;
    Object.assign(block, { drawn, nodes });
    const { element } = block;
    const [link, canvas] = element.children;
    link.href = hashWith({ topology: block.nodes.isPlace === false ? null : place, node: null });
    put(link, place.split("/").at(-1));
    element.className = nodes.some(([, status]) => status !== "SYNCHRONIZED") ? "block troubled" : "block";
    canvas.setAttribute("aria-label", `${place}: ${blockSummary(nodes)}`);
    link.title = `${place}: ${blockSummary(nodes)}`;
    draw(canvas, nodes, this.columns, this.cell, colours);
    this.attachMouse(block, canvas);
    return block;
  }

  /** The cell under the mouse names its node; a click opens that node. */
  attachMouse(block, canvas) {
    const nodeAt = ({ offsetX, offsetY }) => block.nodes[Math.floor(offsetY / (this.cell + GAP)) * this.columns + Math.floor(offsetX / (this.cell + GAP))];
    canvas.onmousemove = (event) => {
      const node = nodeAt(event);
      canvas.title = node ? `${node[0]}: ${STATUS_SIGNS[node[1]]} ${node[1]}, ${bound(node[2])}` : "";
    };
    canvas.onclick = (event) => {
      const node = nodeAt(event);
      if (node) location.hash = hashWith({ node: node[0] });
    };
  }
}

/** The places in order. Too many blocks are merged one level up. */
function blocksOf(places) {
  let named = Object.entries(places).flatMap(([place, nodes]) => (place ? [[place, nodes]] : chunks(nodes)));
  while (named.length > MAX_BLOCKS) {
    const parents = Map.groupBy(named, ([place]) => place.split("/").slice(0, -1).join("/"));
    if (parents.size >= named.length || parents.has("")) break;
    named = [...parents].map(([place, parts]) => [place, parts.flatMap(([, nodes]) => nodes)]);
  }
  return named.slice(0, MAX_BLOCKS).toSorted(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
}

function chunks(nodes) {
  const count = Math.ceil(nodes.length / NODES_A_BLOCK);
  return Array.from({ length: count }, (_, at) => {
    const part = nodes.slice(at * NODES_A_BLOCK, (at + 1) * NODES_A_BLOCK);
    return [`${part[0][0]} …`, Object.assign(part, { isPlace: false })];
  });
}

const hallHeadings = new Map();

/** With racks in several halls, each hall's name precedes its racks. */
function withHallHeadings(blocks) {
  const halls = Map.groupBy(blocks.entries(), ([place]) => place.split("/").slice(0, -1).join("/"));
  if (halls.size < 2) return [...blocks.values()].map(({ element }) => element);
  return [...halls].flatMap(([hall, its]) => {
    if (!hallHeadings.has(hall)) hallHeadings.set(hall, Object.assign(document.createElement("li"), { className: "hall", textContent: hall }));
    return [hallHeadings.get(hall), ...its.map(([, { element }]) => element)];
  });
}

function newBlock() {
  const element = document.createElement("li");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  element.append(document.createElement("a"), canvas);
  return { element, drawn: null, nodes: [] };
}

/** "38 SYNCHRONIZED, 2 HOLDOVER; widest ±3.10 µs". */
function blockSummary(nodes) {
  const counts = STATUSES.map((status) => [nodes.filter(([, its]) => its === status).length, status]).filter(([count]) => count > 0);
  const widest = Math.max(-1, ...nodes.map(([, , ns]) => ns ?? -1));
  return `${counts.map((pair) => pair.join(" ")).join(", ")}${widest < 0 ? "" : `; widest ${bound(widest)}`}`;
}

function statusColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    SYNCHRONIZED: ["fine-1", "fine-2", "fine-3", "fine-4"].map(colour),
    HOLDOVER: colour("warn"), DISRUPTED: colour("bad"), UNKNOWN: colour("unknown"), ground: colour("card"),
  };
}

/** Filled: synchronized, paler with a wider bound. Lower half: holdover. Crossed: disrupted. Hollow: unknown. */
function draw(canvas, nodes, columns, cell, colours) {
  const ratio = window.devicePixelRatio || 1;
  const step = cell + GAP;
  const [width, height] = [columns * step, Math.ceil(nodes.length / columns) * step];
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  nodes.forEach(([, status, ns], at) => drawCell(pen, (at % columns) * step, Math.floor(at / columns) * step, cell, colours, status, ns));
}

function drawCell(pen, x, y, cell, colours, status, ns) {
  const shade = DECADES.filter((limit) => ns === null || ns > limit).length;
  pen.fillStyle = pen.strokeStyle = status === "SYNCHRONIZED" ? colours.SYNCHRONIZED[shade] : colours[status];
  if (status === "SYNCHRONIZED" || status === "DISRUPTED") pen.fillRect(x, y, cell, cell);
  else pen.strokeRect(x + 0.75, y + 0.75, cell - 1.5, cell - 1.5);
  if (status === "HOLDOVER") pen.fillRect(x, y + cell / 2, cell, cell / 2);
  if (status !== "DISRUPTED") return;
  pen.strokeStyle = colours.ground;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const [from, to] of [[1, cell - 1], [cell - 1, 1]]) {
    pen.moveTo(x + from, y + 1);
    pen.lineTo(x + to, y + cell - 1);
  }
  pen.stroke();
  pen.lineWidth = 1;
}
