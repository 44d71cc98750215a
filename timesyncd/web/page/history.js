// A node's history: offset, path delay and bound over 1 hour to 90 days, from the roll-ups of the daemon's store.

import { fetchJson } from "./api.js";
import { drawRollups } from "./chart.js";
import { put, putChildren } from "./dom.js";
import { bound, signed, timeText } from "./model.js";

const HOUR_MS = 3_600_000;
const SPANS = [["1 h", HOUR_MS], ["24 h", 24 * HOUR_MS], ["7 d", 168 * HOUR_MS], ["90 d", 2160 * HOUR_MS]];
const QUANTITIES = [
  ["offset_ns", "offset", signed], ["path_delay_ns", "path delay", signed],
  ["gm_bound_ns", "bound to the grandmaster", bound], ["utc_bound_ns", "bound to UTC", bound],
];
const REFRESH_MS = 60_000;

export class HistoryCharts {
  constructor(section, template) {
    this.section = section;
    this.template = template;
    this.charts = section.querySelector(".charts");
    this.spanMs = SPANS[0][1];
    this.node = null;
    this.requested = "";
    this.requestedAt = -Infinity;
    putChildren(section.querySelector(".spans"), SPANS.map(([name, ms]) => this.spanButton(name, ms)));
  }

  spanButton(name, ms) {
    const button = Object.assign(document.createElement("button"), { textContent: name, type: "button" });
    button.setAttribute("aria-pressed", String(ms === this.spanMs));
    button.addEventListener("click", () => {
      this.spanMs = ms;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
    });
    return button;
  }

  /** Requests the history of this node when the node or the span changes, and each minute; with null it shows none. */
  tick(node, now) {
    const request = JSON.stringify([node, this.spanMs]);
    if (request === this.requested && (document.hidden || now - this.requestedAt < REFRESH_MS)) return;
    if (node !== this.node) this.show([]);
    Object.assign(this, { node, requested: request, requestedAt: now });
    if (node !== null) this.load(node, request);
  }

  async load(node, request) {
    const until = Date.now();
    const span = { node, since: new Date(until - this.spanMs).toISOString(), until: new Date(until).toISOString() };
    const sources = (await fetchJson(`api/v1/history/sources?node=${encodeURIComponent(node)}`))?.items ?? [];
    const series = QUANTITIES.flatMap(([quantity, name, format]) =>
      sources.filter((each) => each.quantity === quantity).map(({ source }) => ({ source, quantity, name, format })));
    const bodies = await Promise.all(series.map(({ source, quantity }) => fetchJson(`api/v1/history?${new URLSearchParams({ ...span, source, quantity })}`)));
    if (request !== this.requested) return;
    const drawn = series.map((each, at) => ({ ...each, points: (bodies[at]?.items ?? []).map(chartPoint) })).filter(({ points }) => points.length > 1);
    this.show(drawn.map((each) => this.figure(each, until - this.spanMs, until)), sources.length > 0);
  }

  /** A daemon without a store shows no section. */
  show(figures, hasStore = false) {
    this.section.hidden = !hasStore;
    putChildren(this.charts, figures);
    put(this.section.querySelector(".none"), figures.length === 0 ? "The store has no data for this time span." : "");
  }

  figure({ source, name, format, points }, fromMs, untilMs) {
    const figure = this.template.content.firstElementChild.cloneNode(true);
    const [heading, svg, caption] = figure.children;
    const [low, high] = drawRollups(svg, points, fromMs * 1e6, untilMs * 1e6);
    put(heading, `${source} ${name}`);
    svg.setAttribute("aria-label", `${source} ${name}: ${format(low)} to ${format(high)}`);
    const summary = `${format(low)} to ${format(high)}, latest median ${format(points.at(-1).median)}`;
    put(caption, summary);
    svg.onmousemove = (event) => put(caption, pointText(event, svg, points, fromMs, untilMs, format) ?? summary);
    svg.onmouseleave = () => put(caption, summary);
    return figure;
  }
}

/** A roll-up, or a single sample, as the chart's point. */
const chartPoint = (point) => ({ at: point.realtime_ns, low: point.minimum, high: point.maximum, median: point.p50, p99: point.p99 });

/** The values of the point nearest to the mouse. */
function pointText(event, svg, points, fromMs, untilMs, format) {
  const at = (fromMs + (event.offsetX / svg.clientWidth) * (untilMs - fromMs)) * 1e6;
  const point = points.toSorted((a, b) => Math.abs(a.at - at) - Math.abs(b.at - at))[0];
  return point && `${timeText(point.at)}: ${format(point.low)} to ${format(point.high)}, median ${format(point.median)}, p99 ${format(point.p99)}`;
}
