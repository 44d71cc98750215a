// The last minutes of offset and bound, as two SVG paths.

import { duration, up } from "./model.js";

const WINDOW_MS = 5 * 60 * 1000;
const WIDTH = 600;
const MIDDLE = 60;

export class Chart {
  constructor(svg, scale) {
    this.band = svg.querySelector(".band");
    this.line = svg.querySelector(".line");
    this.scale = scale;
    this.points = [];
  }

  /** null for a value that is not known: the line and the band break there. */
  add(now, offsetNs, boundNs) {
    this.points.push({ at: now, offsetNs, boundNs });
    while (this.points[0].at < now - WINDOW_MS) this.points.shift();
  }

  draw(now, boundNs) {
    const points = [...this.points, { at: now, offsetNs: null, boundNs }];
    const largest = Math.max(1, ...points.map((p) => Math.max(Math.abs(p.offsetNs ?? 0), p.boundNs ?? 0)));
    const from = Math.min(now - 30_000, this.points[0]?.at ?? now);
    const x = (p) => (((p.at - from) / (now - from)) * WIDTH).toFixed(1);
    const y = (ns) => (MIDDLE - (ns / largest) * (MIDDLE - 3)).toFixed(1);
    this.line.setAttribute("d", runs(points, "offsetNs").map((run) => path(run.map((p) => [x(p), y(p.offsetNs)]))).join(""));
    this.band.setAttribute("d", runs(points, "boundNs").map((run) => path([
      ...run.map((p) => [x(p), y(p.boundNs)]),
      ...run.toReversed().map((p) => [x(p), y(-p.boundNs)]),
    ]) + "Z").join(""));
    this.scale.textContent = `full height ±${duration(largest, up)};`;
  }
}

const path = (corners) => "M" + corners.map((corner) => corner.join(" ")).join("L");

/** The stretches without a gap. */
function runs(points, field) {
  const found = [[]];
  for (const point of points) {
    if (point[field] === null) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((run) => run.length > 0);
}
