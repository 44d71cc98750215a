// Charts over time, by uPlot: one range and one cursor for all charts of a view.

import uPlot from "uplot";
import { colour, onTheme } from "./colours.ts";
import { h } from "./dom.ts";
import { linePaths } from "./dense.ts";
import { duration } from "./model.ts";
import { place } from "./place.ts";
import { chartFont, letters, scaledHeight } from "./size.ts";
import type { Table } from "./track.ts";

export interface Line {
  label: string;
  /** The name of a colour of the theme. */
  colour: string;
  width?: number;
  dash?: number[];
  /** Bars against the right axis, for a count. */
  bars?: boolean;
  /** Fills down to the line with this index. */
  fillTo?: number;
  fill?: string;
  isHidden?: boolean;
  /** The other side of a band: it needs no entry in the legend. */
  isMirrored?: boolean;
  /** Where the lines are stacked: the index of the line whose value is to be taken off for the legend. */
  above?: number;
}

export interface ChartOptions {
  name: string;
  lines: Line[];
  height: number;
  log?: boolean;
  /** The axis begins at zero. */
  zero?: boolean;
  text?: (value: number) => string;
  /** Marks across the chart. */
  flags?: () => { atMs: number; text: string }[];
  /** Horizontal limits. */
  limits?: () => { value: number; text: string }[];
}

const ns = (value: number): string => duration(value);
const SYNC = uPlot.sync("view");

/** uPlot's x is in seconds; the page's times are Unix milliseconds. */
export class TimeChart {
  readonly element = h("div", { class: "chart" });
  private plot: uPlot | null = null;
  private table: Table = { times: [], values: [] };

  constructor(host: HTMLElement, private readonly options: ChartOptions) {
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", options.name);
    host.append(this.element);
    onTheme(() => this.rebuild());
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  set(table: Table): void {
    this.table = table;
    if (this.plot === null) this.rebuild();
    this.plot?.setData(this.data(), false);
    this.redraw();
    if (this.plot !== null) newest(this.plot);
  }

  /** Applies the range of the address. */
  redraw(): void {
    const [from, to] = place.limits(Date.now());
    this.plot?.setScale("x", { min: from / 1e3, max: to / 1e3 });
  }

  private data(): uPlot.AlignedData {
    return [this.table.times.map((at) => at / 1e3), ...this.options.lines.map((_, index) => this.table.values[index] ?? [])] as uPlot.AlignedData;
  }

  private resize(): void {
    const width = this.element.clientWidth;
    const height = scaledHeight(this.options.height);
    if (width > 0 && this.plot !== null && this.plot.height !== height) this.rebuild();
    else if (width > 0 && this.plot !== null && this.plot.width !== width) this.plot.setSize({ width, height });
    else if (width > 0 && this.plot === null && this.table.times.length > 0) this.rebuild();
  }

  rebuild(): void {
    const width = this.element.clientWidth;
    this.plot?.destroy();
    this.plot = null;
    if (width === 0) return;
    this.plot = new uPlot(this.settings(width), this.data(), this.element);
    this.redraw();
  }

  private settings(width: number): uPlot.Options {
    const { lines, log, text = ns } = this.options;
    const hasBars = lines.some((line) => line.bars);
    return {
      width, height: scaledHeight(this.options.height),
      pxAlign: 1,
      tzDate: (seconds) => (place.zone === "utc" ? uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC") : new Date(seconds * 1e3)),
      legend: { live: true },
      cursor: { sync: { key: SYNC.key }, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
      scales: {
        x: { time: true },
        y: { distr: log ? 3 : 1, range: (_plot, low, high) => yRange(this.options.zero ? 0 : low, high, log ?? false, this.options.limits?.() ?? []) },
        ...(hasBars ? { count: { range: (_plot, _low, high) => [0, Math.max(1, high) * 1.1] as uPlot.Range.MinMax } } : {}),
      },
      axes: [timeAxis(), valueAxis(text, log ?? false), ...(hasBars ? [countAxis()] : [])],
      bands: lines.flatMap((line, index) => (line.fillTo === undefined ? [] : [{ series: [index + 1, line.fillTo + 1] as uPlot.Band.Bounds, fill: colour(line.fill ?? line.colour) }])),
      series: [
        { label: "time", value: (_plot, value) => (value === null ? "" : timeLabel(value)) },
        ...lines.map((line) => this.series(line, text)),
      ],
      hooks: {
        setSelect: [(plot) => selected(plot)],
        setLegend: [newest],
        ready: [(plot) => {
          plot.over.addEventListener("click", () => marked(plot));
          plot.over.addEventListener("dblclick", () => place.setRange(place.usualRange));
        }],
        draw: [(plot) => this.drawMarks(plot)],
      },
    };
  }

  private series(line: Line, text: (value: number) => string): uPlot.Series {
    const shown: uPlot.Series = {
      label: line.label,
      stroke: colour(line.colour),
      width: line.width ?? 1.5,
      spanGaps: false,
      points: { show: (plot) => plot.data[0].length < 3 },
      show: !line.isHidden,
      value: (plot, value, _series, index) => {
        if (value === null || value === undefined) return "—";
        const below = line.above === undefined || index === null ? 0 : (plot.data[line.above + 1]?.[index] ?? 0);
        return line.bars ? String(value) : text(value - below);
      },
    };
    const linear = uPlot.paths.linear?.();
    if (linear !== undefined && !this.options.lines.some(({ fillTo }) => fillTo !== undefined)) Object.assign(shown, linePaths(line.colour, line.width ?? 1.5, linear));
    if (line.dash) shown.dash = line.dash;
    if (line.isMirrored) shown.class = "mirrored";
    if (line.bars) Object.assign(shown, { scale: "count", paths: uPlot.paths.bars?.({ size: [1, 12], align: 1 }), fill: colour(line.colour), width: 0 });
    return shown;
  }

  private drawMarks(plot: uPlot): void {
    const { ctx: pen, bbox } = plot;
    pen.save();
    pen.font = chartFont(devicePixelRatio);
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    pen.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    const ends: number[] = [];
    const vertical = (atMs: number, ink: string, text: string): void => drawVertical(plot, ends, plot.valToPos(atMs / 1e3, "x", true), ink, text);
    for (const flag of (this.options.flags?.() ?? []).toSorted((a, b) => a.atMs - b.atMs)) vertical(flag.atMs, colour("warn"), flag.text);
    if (place.cursorMs !== null) vertical(place.cursorMs, colour("accent"), "");
    for (const limit of this.options.limits?.() ?? []) {
      const y = plot.valToPos(limit.value, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      line(pen, colour("bad"), bbox.left, y, bbox.left + bbox.width, y);
      pen.fillStyle = colour("bad");
      pen.fillText(limit.text, bbox.left + 4 * devicePixelRatio, y - 4 * devicePixelRatio);
    }
    pen.restore();
  }
}

/** Where the label of a vertical line begins: right of the line, or left of it where it would not end before `right`. */
export const labelFrom = (x: number, wide: number, right: number, gap: number): number => (x + gap + wide <= right ? x + gap : x - gap - wide);

/** A line with its label in the first row in which it covers no other one; `ends` is where the labels of each row end. */
function drawVertical({ ctx: pen, bbox }: uPlot, ends: number[], x: number, ink: string, text: string): void {
  const right = bbox.left + bbox.width;
  if (!(x >= bbox.left && x <= right)) return;
  line(pen, ink, x, bbox.top, x, bbox.top + bbox.height);
  pen.fillStyle = colour("ink");
  const wide = pen.measureText(text).width;
  const from = labelFrom(x, wide, right, 4 * devicePixelRatio);
  const row = [0, 1, 2, 3].find((each) => (ends[each] ?? -Infinity) < from);
  if (row === undefined || text === "") return;
  ends[row] = from + wide + 6 * devicePixelRatio;
  pen.fillText(text, from, bbox.top + (row + 1) * letters(12) * devicePixelRatio);
}

function line(pen: CanvasRenderingContext2D, ink: string, fromX: number, fromY: number, toX: number, toY: number): void {
  pen.strokeStyle = ink;
  pen.lineWidth = devicePixelRatio;
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}

/** Whole decades on a log scale; else a margin, and zero where the values are near to it. */
function yRange(low: number | null, high: number | null, log: boolean, limits: { value: number }[], least = 1): uPlot.Range.MinMax {
  if (low === null || high === null) return log ? [100, 1e6] : [0, 1];
  const most = Math.max(high, ...limits.map(({ value }) => (value < 20 * high ? value : high)));
  if (log) return [10 ** Math.floor(Math.log10(Math.max(least, low))), 10 ** Math.ceil(Math.log10(Math.max(10 * least, most * 1.05)))];
  const margin = most === low ? Math.max(1, Math.abs(low) * 0.1) : (most - low) * 0.06;
  return [low >= 0 && low < most / 2 ? 0 : low - margin, most + margin];
}

const axisStyle = (): Pick<uPlot.Axis, "stroke" | "grid" | "ticks" | "font"> => ({
  stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, font: chartFont(),
});

const timeAxis = (): uPlot.Axis => ({
  ...axisStyle(), space: letters(70), size: letters(30),
  values: (_plot, splits, _index, _space, step) => splits.map((seconds) => axisTime(seconds, step)),
});

function axisTime(seconds: number, step: number): string {
  const label = timeLabel(seconds);
  if (step >= 86_400) return label.slice(5, 10);
  return step >= 60 ? label.slice(11, 16) : label.slice(11, 19);
}

/** "2026-11-26 03:04:11" in the zone that the reader selected. */
function timeLabel(seconds: number): string {
  const date = new Date(seconds * 1e3);
  const shifted = place.zone === "utc" ? date : new Date(date.getTime() - date.getTimezoneOffset() * 60e3);
  return shifted.toISOString().slice(0, 19).replace("T", " ");
}

/** As wide as the longest label: a frequency of −12.25 ppm is longer than most bounds. */
const labelSize = (labels: string[] | null): number => Math.max(letters(64), letters(16) + letters(6.8) * Math.max(0, ...(labels ?? []).map((label) => label.length)));

const valueAxis = (text: (value: number) => string, log: boolean): uPlot.Axis => ({
  ...axisStyle(), scale: "y", size: (_plot, labels) => labelSize(labels),
  values: (_plot, splits) => splits.map((value) => (value === null || (log && Math.log10(value) % 1 !== 0) ? "" : text(value))),
});

const countAxis = (): uPlot.Axis => ({ ...axisStyle(), scale: "count", side: 1, size: letters(36), grid: { show: false }, values: (_plot, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")) });

/** While no pointer is in a chart its legend has the newest values of the range. */
function newest(plot: uPlot): void {
  if ((plot.cursor.idx ?? null) !== null) return;
  const [times, ...columns] = plot.data;
  const { min = -Infinity, max = Infinity } = plot.scales.x ?? {};
  const idx = times.findLastIndex((at, index) => at >= min && at <= max && columns.some((column) => (column[index] ?? null) !== null));
  plot.setLegend({ idxs: plot.data.map(() => (idx < 0 ? null : idx)) }, false);
}

/** The legend of a forecast begins with what is now: its first value at or after zero. */
function atStart(plot: uPlot): void {
  if ((plot.cursor.idx ?? null) !== null) return;
  const idx = plot.data[0].findIndex((at) => at >= 0);
  if (idx >= 0) plot.setLegend({ idx }, false);
}

/** A drag selects the range of every chart. */
function selected(plot: uPlot): void {
  const { left, width } = plot.select;
  if (width < 4) return;
  const [fromMs, toMs] = [plot.posToVal(left, "x") * 1e3, plot.posToVal(left + width, "x") * 1e3];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  place.setRange({ kind: "fixed", fromMs: Math.round(fromMs), toMs: Math.round(toMs) });
}

/** A click marks a moment in every chart; a second click at it removes the mark. */
function marked(plot: uPlot): void {
  const left = plot.cursor.left ?? -1;
  if (left < 0) return;
  const atMs = Math.round(plot.posToVal(left, "x") * 1e3);
  const before = place.cursorMs;
  const isSame = before !== null && Math.abs(plot.valToPos(before / 1e3, "x") - left) < 4;
  place.replace({ at: isSame ? null : new Date(atMs).toISOString() });
}

export interface CurveOptions {
  name: string;
  lines: Line[];
  height: number;
  log: boolean;
  xText: (value: number) => string;
  yText: (value: number) => string;
  /** What a log scale begins with at the lowest; 1 by default. */
  least?: number;
  /** A line has points of its own: it is drawn across those of the others. */
  spansGaps?: boolean;
  /** In the legend. */
  xName?: string;
  marks: () => { x?: number; y?: number; text: string }[];
}

/** A curve over something else than the time: a forecast, a budget. */
export class CurveChart {
  private readonly element = h("div", { class: "chart", role: "img" });
  private plot: uPlot | null = null;
  private data: uPlot.AlignedData = [[]];
  private drawn = "";
  private font = "";

  constructor(host: HTMLElement, private readonly options: CurveOptions) {
    this.element.setAttribute("aria-label", options.name);
    host.append(this.element);
    onTheme(() => this.rebuild());
    new ResizeObserver(() => this.rebuild()).observe(this.element);
  }

  set(xs: number[], columns: (number | null)[][]): void {
    const drawn = JSON.stringify([xs.length, xs.at(-1), columns.map((column) => [column[0], column[column.length >> 1], column.at(-1)])]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.data = [xs, ...columns] as uPlot.AlignedData;
    this.rebuild();
  }

  private rebuild(): void {
    const width = this.element.clientWidth;
    if (this.plot?.width === width && this.plot.height === scaledHeight(this.options.height) && this.plot.data === this.data && this.font === chartFont()) return;
    this.font = chartFont();
    this.plot?.destroy();
    this.plot = width === 0 || this.data[0].length === 0 ? null : new uPlot(this.settings(width), this.data, this.element);
  }

  private settings(width: number): uPlot.Options {
    const { lines, log, xText, yText, least = 1, spansGaps = false, xName = "after" } = this.options;
    const decade = (value: number): boolean => !log || Math.log10(value) % 1 === 0;
    return {
      width, height: scaledHeight(this.options.height),
      padding: [null, letters(30), null, null], // the last label of the axis is as wide
      cursor: { drag: { x: true, y: false }, points: { size: 5 } },
      scales: { x: { time: false, distr: log ? 3 : 1 }, y: { distr: log ? 3 : 1, range: (_plot, low, high) => yRange(low, high, log, this.options.marks().flatMap(({ y }) => (y === undefined ? [] : [{ value: y }])), least) } },
      axes: [
        { ...axisStyle(), space: letters(60), size: letters(30), values: (_plot, splits) => splits.map((value) => (value !== null && decade(value) ? xText(value) : "")) },
        { ...axisStyle(), size: letters(64), values: (_plot, splits) => splits.map((value) => (value !== null && decade(value) ? yText(value) : "")) },
      ],
      series: [
        { label: xName, value: (_plot, value) => (value === null ? "" : xText(value)) },
        ...lines.map((each): uPlot.Series => ({
          label: each.label, stroke: colour(each.colour), width: each.width ?? 1.5, ...(each.dash ? { dash: each.dash } : {}),
          points: { show: false }, spanGaps: spansGaps, value: (_plot, value) => (value === null ? "—" : yText(value)),
        })),
      ],
      hooks: { draw: [(plot) => this.drawMarks(plot)], setLegend: [atStart], ready: [atStart] },
    };
  }

  private drawMarks(plot: uPlot): void {
    const { ctx: pen, bbox } = plot;
    pen.save();
    pen.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    pen.font = chartFont(devicePixelRatio);
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    const ends: number[] = [];
    for (const { x, y, text } of this.options.marks()) {
      if (x !== undefined) drawVertical(plot, ends, plot.valToPos(x, "x", true), colour("warn"), text);
      const at = y === undefined ? NaN : plot.valToPos(y, "y", true);
      if (!(at >= bbox.top && at <= bbox.top + bbox.height)) continue;
      line(pen, colour("bad"), bbox.left, at, bbox.left + bbox.width, at);
      pen.fillStyle = colour("ink");
      pen.fillText(text, bbox.left + 4, at - 4);
    }
    pen.restore();
  }
}
