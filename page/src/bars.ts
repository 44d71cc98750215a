// Stacked bars over a category: the steps of a job. A canvas, since uPlot's x is a number and 500 bars are 2,000 shapes.

import { colour, onTheme } from "./colours.ts";
import { h, put } from "./dom.ts";
import { chartFont, letters, scaledHeight } from "./size.ts";

export interface BarsOptions {
  name: string;
  height: number;
  parts: { label: string; colour: string }[];
  text: (value: number) => string;
}

export interface Bar {
  label: string;
  note: string;
  values: number[];
}

const left = (): number => letters(70);
const bottom = (): number => letters(20);
const TOP = 8;

/** About four round values up to the largest. */
export function ticks(most: number): number[] {
  if (most <= 0) return [0];
  const rough = most / 4;
  const decade = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 2.5, 5, 10].find((each) => each * decade >= rough) ?? 10) * decade;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => index * step);
}

export class CategoryBars {
  private readonly canvas = h("canvas", { role: "img" });
  private readonly caption = h("output", { class: "quiet cell-text" });
  private bars: Bar[] = [];

  constructor(private readonly host: HTMLElement, private readonly options: BarsOptions) {
    this.canvas.setAttribute("aria-label", options.name);
    const legend = h("p", { class: "legend" }, ...options.parts.map((part) => h("span", {}, h("i", { class: `key-${part.colour}` }), part.label)));
    host.append(legend, this.canvas, this.caption);
    onTheme(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(host);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX));
  }

  set(bars: Bar[]): void {
    this.bars = bars;
    this.draw();
  }

  private hover(x: number): void {
    const bar = this.bars[Math.floor(((x - left()) / (this.host.clientWidth - left())) * this.bars.length)];
    put(this.caption, bar === undefined ? "" : `step ${bar.label}: ${this.options.parts.map(({ label }, index) => `${label} ${this.options.text(bar.values[index] ?? 0)}`).join(", ")}${bar.note && `; ${bar.note}`}`);
  }

  private draw(): void {
    const width = this.host.clientWidth;
    const pen = this.canvas.getContext("2d");
    if (width === 0 || pen === null || this.bars.length === 0) return;
    const height = scaledHeight(this.options.height);
    Object.assign(this.canvas, { width: Math.round(width * devicePixelRatio), height: Math.round(height * devicePixelRatio) });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    pen.scale(devicePixelRatio, devicePixelRatio);
    const most = Math.max(1, ...this.bars.map(({ values }) => values.reduce((sum, value) => sum + value, 0)));
    const y = (value: number): number => height - bottom() - (value / most) * (height - bottom() - TOP);
    const step = (width - left()) / this.bars.length;
    this.axes(pen, width, most, y, step);
    this.options.parts.forEach((part, index) => {
      pen.fillStyle = colour(part.colour);
      this.bars.forEach(({ values }, at) => {
        const from = values.slice(0, index).reduce((sum, value) => sum + value, 0);
        pen.fillRect(left() + at * step, y(from + (values[index] ?? 0)), Math.max(1, step - (step > 4 ? 1 : 0)), y(from) - y(from + (values[index] ?? 0)));
      });
    });
  }

  private axes(pen: CanvasRenderingContext2D, width: number, most: number, y: (value: number) => number, step: number): void {
    pen.font = chartFont();
    pen.textBaseline = "middle";
    for (const value of ticks(most)) {
      pen.fillStyle = colour("grid");
      pen.fillRect(left(), Math.round(y(value)), width - left(), 1);
      pen.fillStyle = colour("quiet");
      pen.textAlign = "right";
      pen.fillText(this.options.text(value), left() - 6, y(value));
    }
    pen.textAlign = "center";
    const every = Math.max(1, Math.ceil(letters(70) / step));
    this.bars.forEach((bar, at) => { if (at % every === 0) pen.fillText(bar.label, Math.min(width - 24, left() + (at + 0.5) * step), scaledHeight(this.options.height) - bottom() / 2); });
  }
}
