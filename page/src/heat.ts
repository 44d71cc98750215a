// A heat map on a canvas: rows by columns, each cell one pixel of an image that the canvas stretches.

import { colour, onTheme, pixel, rgb, scale } from "./colours.ts";
import { h, put } from "./dom.ts";
import { chartFont, letters, scaledHeight } from "./size.ts";

/** Values of a cell beside a number: nothing is known of it; it is known to be bad without a number; it is too small to tell; it is below zero. */
export const NOTHING = -1;
export const NO_BOUND = -2;
export const WITHIN_ERROR = -3;
export const EARLY = -4;

export interface Matrix {
  rows: string[];
  columns: string[];
  /** Row by row, from the top; each cell is a share of the colour scale from 0 to 1, or one of the constants above. */
  cells: Float32Array;
}

export interface HeatOptions {
  name: string;
  height: number;
  /** Names of the theme's colours. */
  stops: string[];
  cellText: (row: number, column: number) => string;
  onClick?: (row: number, column: number) => void;
  /** The column of the marked moment; null: none. */
  cursor?: () => number | null;
  /** The scale's class, its two ends, and what the cells of colours of their own are. */
  scale: { name: string; from: string; to: string; others: string[] };
}

const LEAST_HEIGHT = 140, MOST_ROW = 48;
const left = (): number => letters(92);
const bottom = (): number => letters(20);

/** The image's pixels (0xAABBGGRR), by the colour scale; `special` are those of the constants above, in their order. Pure, so that its cost can be measured. */
export function paint(cells: Float32Array, colours: Uint32Array, special: number[], pixels: Uint32Array): void {
  for (let at = 0; at < cells.length; at += 1) {
    const value = cells[at] as number;
    pixels[at] = value >= 0 ? (colours[value >= 1 ? 255 : (value * 255) | 0] as number) : (special[-value - 1] as number);
  }
}

/** The first row and column that are shown, and how many; a drag or the keys move it. */
export interface Port {
  row: number;
  column: number;
  rows: number;
  columns: number;
}

/** A view port zoomed by a factor around a cell, inside a matrix of this size. Pure. */
export function zoomedPort(port: Port, factor: number, row: number, column: number, rows: number, columns: number): Port {
  const size = (now: number, most: number): number => Math.min(most, Math.max(Math.min(4, most), now * factor));
  const [height, width] = [size(port.rows, rows), size(port.columns, columns)];
  const start = (first: number, span: number, around: number, next: number, most: number): number =>
    Math.min(Math.max(0, around - ((around - first) / span) * next), most - next);
  return { rows: height, columns: width, row: start(port.row, port.rows, row, height, rows), column: start(port.column, port.columns, column, width, columns) };
}

/** The column that has this moment: the last one that begins before it and is no further away than the columns are apart. Pure. */
export function columnAt(times: number[], atMs: number | null): number | null {
  const [first = 0, second = first] = times;
  const found = atMs === null ? -1 : times.findLastIndex((time) => time <= atMs);
  const next = times[found + 1] ?? (times[found] ?? 0) + second - first;
  return found < 0 || (atMs as number) >= next ? null : found;
}

export class HeatMap {
  readonly canvas = h("canvas", { tabindex: "0", role: "img" });
  private readonly caption = h("output", { class: "quiet cell-text" });
  private matrix: Matrix = { rows: [], columns: [], cells: new Float32Array() };
  private image: OffscreenCanvas | null = null;
  private port: Port = { row: 0, column: 0, rows: 0, columns: 0 };
  private hasZoom = false;
  /** How long the last paint of the image and of the canvas took. */
  lastDrawMs = 0;

  constructor(host: HTMLElement, private readonly options: HeatOptions) {
    this.canvas.setAttribute("aria-label", options.name);
    const { name, from, to, others } = options.scale;
    const legend = h("span", { class: `scale scale-${name}` }, from, h("i"), to, ...others.flatMap((other) => [h("b"), other]));
    host.append(this.canvas, h("div", { class: "heat-foot" }, this.caption, legend));
    onTheme(() => this.render());
    new ResizeObserver(() => this.draw()).observe(host);
    this.listen();
  }

  /** Of few rows less than what is given: a row is no wall. */
  private get height(): number {
    return scaledHeight(Math.min(this.options.height, Math.max(LEAST_HEIGHT, this.matrix.rows.length * MOST_ROW + bottom())));
  }

  set(matrix: Matrix): void {
    const hasChanged = matrix.rows.length !== this.matrix.rows.length || matrix.columns.length !== this.matrix.columns.length;
    this.matrix = matrix;
    if (hasChanged || !this.hasZoom) this.reset();
    this.render();
  }

  private reset(): void {
    this.hasZoom = false;
    this.port = { row: 0, column: 0, rows: this.matrix.rows.length, columns: this.matrix.columns.length };
  }

  private render(): void {
    const [rows, columns] = [this.matrix.rows.length, this.matrix.columns.length];
    if (rows === 0 || columns === 0) return this.empty();
    const began = performance.now();
    const image = new ImageData(columns, rows);
    const special = ["cell-nothing", "no-bound", "cell-within", "cell-early"].map((name) => pixel(rgb(colour(name))));
    paint(this.matrix.cells, scale(this.options.stops.map(colour)), special, new Uint32Array(image.data.buffer));
    if (this.image?.width !== columns || this.image.height !== rows) this.image = new OffscreenCanvas(columns, rows);
    this.image.getContext("2d")?.putImageData(image, 0, 0);
    this.draw();
    this.lastDrawMs = performance.now() - began;
  }

  private empty(): void {
    this.image = null;
    put(this.caption, "");
    this.draw();
  }

  private draw(): void {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    const pen = this.canvas.getContext("2d");
    if (width === 0 || pen === null) return;
    const ratio = devicePixelRatio;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
      Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(this.height * ratio) });
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${this.height}px` });
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, this.height);
    pen.imageSmoothingEnabled = false;
    const { row, column, rows, columns } = this.port;
    if (this.image !== null) {
      pen.drawImage(this.image, column, row, columns, rows, left(), 0, width - left(), this.height - bottom());
      this.separators(pen, width);
    }
    this.drawCursor(pen, width);
    this.labels(pen, width);
  }

  /** Rows that are high enough are set apart by a hair. */
  private separators(pen: CanvasRenderingContext2D, width: number): void {
    const { row, rows } = this.port;
    const rowHeight = (this.height - bottom()) / rows;
    if (rowHeight < 7) return;
    pen.fillStyle = colour("card");
    for (let at = Math.ceil(row); at <= row + rows; at += 1) pen.fillRect(left(), Math.round((at - row) * rowHeight) - 1, width - left(), 1);
  }

  private drawCursor(pen: CanvasRenderingContext2D, width: number): void {
    const { column, columns } = this.port;
    const at = this.options.cursor?.() ?? null;
    if (at === null || at + 0.5 < column || at + 0.5 > column + columns) return;
    const x = left() + ((at + 0.5 - column) / columns) * (width - left());
    pen.strokeStyle = colour("ink");
    pen.setLineDash([4, 3]);
    pen.strokeRect(x, 0, 0, this.height - bottom());
    pen.setLineDash([]);
  }

  private labels(pen: CanvasRenderingContext2D, width: number): void {
    const { row, column, rows, columns } = this.port;
    pen.fillStyle = colour("quiet");
    pen.font = chartFont();
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const [plotWidth, plotHeight] = [width - left(), this.height - bottom()];
    const every = Math.max(1, Math.ceil((rows * letters(14)) / plotHeight));
    for (let at = Math.ceil(row / every) * every; at < row + rows; at += every) {
      const y = ((at + 0.5 - row) / rows) * plotHeight;
      pen.fillText(this.matrix.rows[at] ?? "", left() - 6, Math.min(plotHeight - letters(5), Math.max(letters(6), y)), left() - 8);
    }
    pen.textAlign = "center";
    const step = Math.max(1, Math.ceil((columns * letters(70)) / plotWidth));
    for (let at = Math.ceil(column / step) * step; at < column + columns; at += step) {
      const x = left() + ((at + 0.5 - column) / columns) * plotWidth;
      if (x < width - 24) pen.fillText(this.matrix.columns[at] ?? "", x, this.height - bottom() / 2);
    }
  }

  /** The cell below a point of the canvas; null: none. */
  private cellAt(x: number, y: number): [row: number, column: number] | null {
    const [plotWidth, plotHeight] = [this.canvas.clientWidth - left(), this.height - bottom()];
    if (x < left() || y < 0 || y >= plotHeight) return null;
    const { row, column, rows, columns } = this.port;
    const cell: [number, number] = [Math.floor(row + (y / plotHeight) * rows), Math.floor(column + ((x - left()) / plotWidth) * columns)];
    return this.matrix.rows[cell[0]] === undefined || this.matrix.columns[cell[1]] === undefined ? null : cell;
  }

  private listen(): void {
    let dragged: { x: number; y: number; port: Port; moved: boolean } | null = null;
    this.canvas.addEventListener("pointermove", (event) => {
      if (dragged !== null && event.buttons === 1) {
        dragged.moved ||= Math.hypot(event.offsetX - dragged.x, event.offsetY - dragged.y) > 4;
        if (dragged.moved) this.pan(dragged.port, dragged.x - event.offsetX, dragged.y - event.offsetY);
        return;
      }
      const cell = this.cellAt(event.offsetX, event.offsetY);
      put(this.caption, cell === null ? "" : this.options.cellText(...cell));
    });
    this.canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.offsetX, y: event.offsetY, port: this.port, moved: false }; });
    this.canvas.addEventListener("pointerup", (event) => {
      const cell = dragged?.moved ? null : this.cellAt(event.offsetX, event.offsetY);
      dragged = null;
      if (cell !== null) this.options.onClick?.(...cell);
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.cellAt(event.offsetX, event.offsetY));
    }, { passive: false });
    this.canvas.addEventListener("dblclick", () => { this.reset(); this.draw(); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  private key(event: KeyboardEvent): void {
    const [step, height] = [(this.canvas.clientWidth - left()) / 8, (this.height - bottom()) / 8];
    const moves: Record<string, [number, number]> = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -height], ArrowDown: [0, height] };
    const move = moves[event.key];
    if (move !== undefined) this.pan(this.port, ...move);
    else if (event.key === "+" || event.key === "-") this.zoom(event.key === "-" ? 1.25 : 0.8, null);
    else if (event.key === "0") { this.reset(); this.draw(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private pan(from: Port, dx: number, dy: number): void {
    const { rows, columns } = from;
    const column = from.column + (dx / (this.canvas.clientWidth - left())) * columns;
    const row = from.row + (dy / (this.height - bottom())) * rows;
    this.port = {
      rows, columns,
      row: Math.min(Math.max(0, row), this.matrix.rows.length - rows), column: Math.min(Math.max(0, column), this.matrix.columns.length - columns),
    };
    this.draw();
  }

  private zoom(factor: number, cell: [number, number] | null): void {
    const [row, column] = cell ?? [this.port.row + this.port.rows / 2, this.port.column + this.port.columns / 2];
    this.port = zoomedPort(this.port, factor, row, column, this.matrix.rows.length, this.matrix.columns.length);
    this.hasZoom = true;
    this.draw();
  }
}
