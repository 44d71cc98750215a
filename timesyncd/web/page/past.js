// A node's past: offset, path delay and bound over an hour to 90 days, as the daemon's store rolled them up.

import { ask } from "./ask.js";
import { drawHistory } from "./chart.js";
import { put, putChildren } from "./dom.js";
import { bound, moment, signed } from "./model.js";

const HOUR_MS = 3_600_000;
const SPANS = [["1 h", HOUR_MS], ["24 h", 24 * HOUR_MS], ["7 d", 168 * HOUR_MS], ["90 d", 2160 * HOUR_MS]];
const QUANTITIES = [
  ["offset_ns", "offset", signed], ["path_delay_ns", "path delay", signed],
  ["gm_bound_ns", "bound to the grandmaster", bound], ["utc_bound_ns", "bound to UTC", bound],
];
const AGAIN_MS = 60_000;

export class Past {
  constructor(section, template) {
    this.section = section;
    this.template = template;
    this.charts = section.querySelector(".charts");
    this.lengthMs = SPANS[0][1];
    this.node = null;
    this.asked = "";
    this.askedAt = -Infinity;
    putChildren(section.querySelector(".spans"), SPANS.map(([name, ms]) => this.spanButton(name, ms)));
  }

  spanButton(name, ms) {
    const button = Object.assign(document.createElement("button"), { textContent: name, type: "button" });
    button.setAttribute("aria-pressed", String(ms === this.lengthMs));
    button.addEventListener("click", () => {
      this.lengthMs = ms;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
    });
    return button;
  }

  /** Of this node; null: of none. Asked anew when another span is wanted, and each minute. */
  tick(node, now) {
    const question = JSON.stringify([node, this.lengthMs]);
    if (question === this.asked && (document.hidden || now - this.askedAt < AGAIN_MS)) return;
    if (node !== this.node) this.show([]);
    Object.assign(this, { node, asked: question, askedAt: now });
    if (node !== null) this.ask(node, question);
  }

  async ask(node, question) {
    const until = Date.now();
    const span = { node, since: new Date(until - this.lengthMs).toISOString(), until: new Date(until).toISOString() };
    const there = (await ask(`api/v1/history/sources?node=${encodeURIComponent(node)}`))?.items ?? [];
    const wanted = QUANTITIES.flatMap(([quantity, name, write]) =>
      there.filter((each) => each.quantity === quantity).map(({ source }) => ({ source, quantity, name, write })));
    const answers = await Promise.all(wanted.map(({ source, quantity }) => ask(`api/v1/history?${new URLSearchParams({ ...span, source, quantity })}`)));
    if (question !== this.asked) return;
    const found = wanted.map((each, at) => ({ ...each, points: (answers[at]?.items ?? []).map(pointOf) })).filter(({ points }) => points.length > 1);
    this.show(found.map((each) => this.figure(each, until - this.lengthMs, until)), there.length > 0);
  }

  /** A daemon that keeps nothing shows nothing. */
  show(figures, isKept = false) {
    this.section.hidden = !isKept;
    putChildren(this.charts, figures);
    put(this.section.querySelector(".none"), figures.length === 0 ? "The store has nothing of this span." : "");
  }

  figure({ source, name, write, points }, fromMs, untilMs) {
    const figure = this.template.content.firstElementChild.cloneNode(true);
    const [head, svg, caption] = figure.children;
    const [low, high] = drawHistory(svg, points, fromMs * 1e6, untilMs * 1e6);
    put(head, `${source} ${name}`);
    svg.setAttribute("aria-label", `${source} ${name}: ${write(low)} to ${write(high)}`);
    const whole = `${write(low)} to ${write(high)}, median last ${write(points.at(-1).middle)}`;
    put(caption, whole);
    svg.onmousemove = (event) => put(caption, below(event, svg, points, fromMs, untilMs, write) ?? whole);
    svg.onmouseleave = () => put(caption, whole);
    return figure;
  }
}

/** A roll-up, or a single sample, as the chart wants it. */
const pointOf = (point) => ({ at: point.realtime_ns, low: point.minimum, high: point.maximum, middle: point.p50, most: point.p99 });

function below(event, svg, points, fromMs, untilMs, write) {
  const at = (fromMs + (event.offsetX / svg.clientWidth) * (untilMs - fromMs)) * 1e6;
  const point = points.toSorted((a, b) => Math.abs(a.at - at) - Math.abs(b.at - at))[0];
  return point && `${moment(point.at)}: ${write(point.low)} to ${write(point.high)}, median ${write(point.middle)}, 99 % below ${write(point.most)}`;
}
