// SVG charts: offset and bound of the last minutes, C/N0 of satellites, a day of time error, and roll-ups.

import { duration, roundUp } from "./model.js";

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

  clear() {
    this.points = [];
  }

  /** A value that is unknown is null; the line or the band has a gap there. */
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
    this.line.setAttribute("d", knownSegments(points, "offsetNs").map((segment) => path(segment.map((p) => [x(p), y(p.offsetNs)]))).join(""));
    this.band.setAttribute("d", knownSegments(points, "boundNs").map((segment) => path([
      ...segment.map((p) => [x(p), y(p.boundNs)]),
      ...segment.toReversed().map((p) => [x(p), y(-p.boundNs)]),
    ]) + "Z").join(""));
    this.scale.textContent = `full height ±${duration(largest, roundUp)};`;
  }
}

const CN0_FULL = 55;
const CN0_GOOD = 37;

function shape(svg, name, attributes, text = "") {
  const element = document.createElementNS(svg.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

/** One bar per satellite above its number. The line marks the C/N0 that a healthy sky reaches. */
export function drawSatellites(svg, satellites) {
  const width = Math.max(satellites.length, 12) * 24;
  svg.setAttribute("viewBox", `0 0 ${width} 74`);
  const y = (cn0) => 56 - (Math.min(cn0, CN0_FULL) / CN0_FULL) * 44;
  svg.replaceChildren(
    shape(svg, "line", { class: "zero", x1: 0, x2: width, y1: y(CN0_GOOD), y2: y(CN0_GOOD) }),
    ...satellites.flatMap(({ number, cn0_db_hz: cn0, healthy }, at) => [
      shape(svg, "rect", { class: healthy ? "healthy" : "unhealthy", x: at * 24 + 3, width: 18, y: y(cn0 ?? 2), height: 56 - y(cn0 ?? 2) }),
      shape(svg, "text", { x: at * 24 + 12, y: y(cn0 ?? 2) - 2 }, String(cn0 ?? "?")),
      shape(svg, "text", { class: "name", x: at * 24 + 12, y: 70 }, String(number)),
    ]),
  );
}

/** Steps of {realtime_ns, lowest_ns, highest_ns} as a band. The dashed line is the channel's alarm threshold, where it lies within the chart. */
export function drawTimeErrors(svg, steps, thresholdNs) {
  const largest = Math.max(1, ...steps.map((step) => Math.max(Math.abs(step.lowest_ns), Math.abs(step.highest_ns))));
  const from = steps[0].realtime_ns;
  const length = Math.max(1, steps.at(-1).realtime_ns - from);
  const x = (step) => (((step.realtime_ns - from) / length) * 200).toFixed(1);
  const y = (ns) => (20 - (ns / largest) * 18).toFixed(1);
  const threshold = [-1, 1].map((sign) => sign * (thresholdNs ?? Infinity)).filter((ns) => Math.abs(ns) <= largest);
  svg.replaceChildren(
    shape(svg, "line", { class: "zero", x1: 0, x2: 200, y1: 20, y2: 20 }),
    ...threshold.map((ns) => shape(svg, "line", { class: "threshold", x1: 0, x2: 200, y1: y(ns), y2: y(ns) })),
    shape(svg, "path", { class: "time-error", d: path([
      ...steps.map((step) => [x(step), y(step.highest_ns)]),
      ...steps.toReversed().map((step) => [x(step), y(step.lowest_ns)]),
    ]) + "Z" }),
  );
}

const GAP_STEPS = 3;

/** Points of {at, low, high, median, p99}: a band from low to high, a line for the 99th percentile and one for the median. Returns the lowest and the highest value. */
export function drawRollups(svg, points, from, until) {
  const low = Math.min(...points.map((point) => point.low));
  const high = Math.max(...points.map((point) => point.high));
  const margin = Math.max(1, (high - low) * 0.05);
  const x = ({ at }) => (((at - from) / (until - from)) * 600).toFixed(1);
  const y = (ns) => (100 - ((ns - low + margin) / (high - low + 2 * margin)) * 100).toFixed(1);
  const parts = segments(points);
  const line = (name, read) => shape(svg, "path", { class: name, d: parts.map((part) => path(part.map((p) => [x(p), y(read(p))]))).join("") });
  const band = parts.map((part) => `${path([...part.map((p) => [x(p), y(p.high)]), ...part.toReversed().map((p) => [x(p), y(p.low)])])}Z`);
  const zero = low < 0 && high > 0 ? [shape(svg, "line", { class: "zero", x1: 0, x2: 600, y1: y(0), y2: y(0) })] : [];
  svg.replaceChildren(shape(svg, "path", { class: "band", d: band.join("") }), ...zero, line("p99", (p) => p.p99), line("line", (p) => p.median));
  return [low, high];
}

/** Splits the points where a step is far longer than the median step: the store has no data there. */
function segments(points) {
  const steps = points.slice(1).map((point, at) => point.at - points[at].at).toSorted((a, b) => a - b);
  const medianStep = steps[Math.floor(steps.length / 2)];
  const found = [[points[0]]];
  points.slice(1).forEach((point, at) => {
    if (point.at - points[at].at > GAP_STEPS * medianStep) found.push([]);
    found.at(-1).push(point);
  });
  return found;
}

const path = (corners) => "M" + corners.map((corner) => corner.join(" ")).join("L");

/** The consecutive points at which the field is known. */
function knownSegments(points, field) {
  const found = [[]];
  for (const point of points) {
    if (point[field] === null) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((segment) => segment.length > 0);
}
