// A line of far more points than a canvas has pixels, as the area between the lowest and the highest value of each column of pixels.

import type uPlot from "uplot";
import { colour } from "./colours.ts";

/** From so many points a pixel on: a stroke that goes up and down in each column takes a browser without a graphics card fifty milliseconds. */
const DENSE = 3;

/** The lowest and the highest value of a column of pixels. */
export interface Column {
  x: number;
  low: number;
  high: number;
}

/** Runs of columns without a hole between them; a null ends a run. `xOf` rises with the time. Pure. */
export function columnsOf(times: ArrayLike<number>, values: ArrayLike<number | null | undefined>, from: number, to: number, xOf: (time: number) => number): Column[][] {
  const runs: Column[][] = [];
  let run: Column[] | null = null;
  for (let at = from; at <= to; at += 1) {
    const value = values[at] ?? null;
    if (value === null) {
      run = null;
      continue;
    }
    if (run === null) runs.push((run = []));
    const x = Math.round(xOf(times[at] as number));
    const last = run.at(-1);
    if (last?.x !== x) run.push({ x, low: Math.min(value, last?.high ?? value), high: Math.max(value, last?.low ?? value) });
    else if (value < last.low) last.low = value;
    else if (value > last.high) last.high = value;
  }
  return runs;
}

function isDense(plot: uPlot): boolean {
  const [from, to] = plot.series[0]?.idxs ?? [0, 0];
  return to - from > (DENSE * plot.bbox.width) / devicePixelRatio;
}

/** What draws a line of this colour: as `usual` does, or as an area where it is dense. */
export function linePaths(name: string, width: number, usual: uPlot.Series.PathBuilder): Pick<uPlot.Series, "paths" | "fill"> {
  return {
    fill: (plot) => (isDense(plot) ? colour(name) : ""),
    paths: (plot, series, from, to) => {
      if (!isDense(plot)) {
        const paths = usual(plot, series, from, to);
        return paths === null ? null : { ...paths, fill: null };
      }
      return { stroke: null, fill: area(plot, series, from, to, width * devicePixelRatio), clip: null, band: null, flags: 0 };
    },
  };
}

/** At least as high as the line would be wide. */
function area(plot: uPlot, series: number, from: number, to: number, least: number): Path2D {
  const { min = 0, max = 1 } = plot.scales.x as { min?: number; max?: number };
  const perSecond = plot.bbox.width / (max - min);
  const runs = columnsOf(plot.data[0], plot.data[series] ?? [], from, to, (time) => plot.bbox.left + (time - min) * perSecond);
  const path = new Path2D();
  for (const run of runs) {
    const edges = run.map(({ x, low, high }) => {
      const [top, bottom] = [plot.valToPos(high, "y", true), plot.valToPos(low, "y", true)];
      return { x, top, bottom: Math.max(bottom, top + least) };
    });
    edges.forEach(({ x, top }, at) => (at === 0 ? path.moveTo(x, top) : path.lineTo(x, top)));
    for (const { x, bottom } of edges.toReversed()) path.lineTo(x, bottom);
    path.closePath();
  }
  return path;
}
