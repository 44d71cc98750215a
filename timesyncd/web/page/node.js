// One node: its status and bound, its sources, and what the bound is made of.

import { Chart } from "./chart.js";
import { byId, fillTable, number, put } from "./dom.js";
import { NO_CLOCK, bound, clockTime, duration, nodeNow, signed, span, up, word } from "./model.js";

/** What stands in a source's fields is its last sample: current only while it can be read and says so. */
const isCurrent = (source) => source.reachable && source.reason_code === "ok";

/** The node's offset: that of the first source that has one now against its reference; a PHC is none. */
export const offsetOf = (node) => node.sources.find((source) => isCurrent(source) && source.kind !== "phc" && source.offset_ns !== null)?.offset_ns ?? null;

export const follows = (node) => node.grandmaster_note ?? node.grandmaster ?? node.grandmaster_identity ?? "—";

/** The elements of a node: those of the page with this prefix to their ids. */
export class NodeCard {
  constructor(prefix = "") {
    this.at = (name) => byId(prefix + name);
    this.chart = new Chart(this.at("chart"), this.at("chart-scale"));
    this.shown = null;
  }

  /** A state that came: a point of the chart. */
  take(node, now) {
    if (this.shown !== node.node) this.chart.clear();
    this.shown = node.node;
    this.chart.add(now, offsetOf(node), nodeNow(node, now, now).mainNs);
  }

  render(node, heardAt, now) {
    const state = nodeNow(node, heardAt, now);
    this.renderHero(node, state);
    this.renderSources(node);
    this.renderTerms(node, state);
    this.chart.draw(now, state.mainNs);
    return state;
  }

  renderHero(node, state) {
    const { at } = this;
    at("hero").dataset.status = state.main;
    put(at("whose"), node.node);
    put(at("status"), word(state.main, state.alone ? "UTC " : "").text);
    put(at("bound"), state.main === NO_CLOCK ? "" : state.mainNs === null ? "no bound" : bound(state.mainNs));
    put(at("forecast"), state.forecast && `if samples stop: ${state.forecast}`);
    put(at("to-whom"), toWhom(node, state));
    put(at("unit-note"), node.grandmaster_note ?? "");
    put(at("since"), state.lastingMs === null ? "" : `for ${span(state.lastingMs)}, ${sinceTime(node, state)}`);
    put(at("reason"), reasonOf(node, state), "quiet");
    const utc = state.utcNs === null ? `no bound: ${node.utc?.reason || "not known"}` : bound(state.utcNs);
    put(at("utc"), state.alone || state.main === NO_CLOCK ? "" : `UTC ${state.utcStatus}, ${utc}`, "quiet");
  }

  renderSources(node) {
    fillTable(this.at("sources"), node.sources.map((source) => [
      source.name,
      sourceName(source, node),
      sourceState(source),
      number(source.offset_ns === null ? "—" : `${signed(source.offset_ns)}${source.error_ns == null ? "" : ` ${bound(source.error_ns)}`}`),
      number(duration(source.path_delay_ns)),
      number(source.frequency_ppb === null ? "—" : `${String(source.frequency_ppb).replace("-", "−")} ppb`),
      number(source.steps_removed === null ? "—" : String(source.steps_removed)),
    ]));
  }

  /** Each term of the hard bound and of the statistical one, their sums, and how fast they grow. */
  renderTerms(node, state) {
    const body = this.at("terms");
    if (state.parentNs === null) fillTable(body, [["none", state.utcNs === null ? `no bound: ${reasonOf(node, state)}` : "no terms: UTC is known from a source alone"]]);
    else fillTable(body, [...termRows(node, state), ...sumRows(state)]);
    fillTable(this.at("rates"), state.parentNs === null && state.utcNs === null ? [] : rateRows(node, state));
  }
}

function toWhom(node, state) {
  if (state.main === NO_CLOCK) return "";
  if (state.alone) return "to UTC; no grandmaster is followed";
  if (!node.grandmaster_identity) return "follows no grandmaster";
  return `to grandmaster ${node.grandmaster ? `${node.grandmaster} (${node.grandmaster_identity})` : node.grandmaster_identity}`;
}

const sinceTime = (node, state) =>
  state.asWritten ? `since ${clockTime(node.since_realtime_ns)}` : "as this page counts while nothing is heard";

export function reasonOf(node, state) {
  if (node.reason) return node.reason;
  if (state.gmNs === null && node.gm?.reason && !state.alone) return node.gm.reason;
  if (state.main === "HOLDOVER") return `no fresh sample for ${span(state.ageNs / 1e6)}; the bound grows`;
  return state.main === "UNKNOWN" ? "no fresh sample for too long" : "";
}

function sourceName(source, node) {
  if (!isCurrent(source)) return { text: `${source.name} ✕`, look: "bad" };
  return node.falsetickers?.includes(source.name) ? { text: `${source.name} ✕ falseticker`, look: "bad" } : source.name;
}

function sourceState(source) {
  const known = source.port_state ?? source.detail ?? null;
  if (isCurrent(source)) return known ?? "—";
  return { text: `${source.reason ?? "unreachable"}${known === null ? "" : `; last known: ${known}`}`, look: "bad" };
}

function termRows(node, state) {
  const { terms, stat_terms: stat = {} } = node;
  const names = [...new Set([...Object.keys(terms), ...Object.keys(stat)])];
  const grown = `growth in ${(state.ageNs / 1e9).toFixed(1)} s`;
  return [
    ...names.filter((name) => terms[name] || stat[name]).map((name) => row(name, name.replaceAll("_", " "), terms[name], stat[name], state)),
    row("growth", grown, state.parentNs - node.parent.bound_ns, state.parentStatNs === null ? undefined : state.parentStatNs - node.parent_stat.bound_ns, state),
  ];
}

function row(key, name, hardNs, statNs, state) {
  const share = (hardNs ?? 0) / state.parentNs;
  return [key, name, number(told(hardNs)), number(told(statNs)), hardNs === undefined ? "" : { text: `${(share * 100).toFixed(0)} %`, bar: share }];
}

const told = (ns) => (ns === undefined || ns === null ? "" : duration(ns, up));

function sumRows(state) {
  const sum = (key, name, hardNs, statNs) => [key, { text: name, look: "unknown" },
    number(hardNs === null ? "unknown" : bound(hardNs)), number(statNs === null ? "" : bound(statNs)), ""];
  return [
    sum("=parent", "to the parent clock", state.parentNs, state.parentStatNs),
    sum("=gm", "to the grandmaster", state.gmNs, state.gmStatNs),
    sum("=utc", "to UTC", state.utcNs, state.utcStatNs),
  ];
}

function rateRows(node, state) {
  const rates = Object.entries(node.rates ?? {}).filter(([, ppb]) => ppb > 0);
  const sum = (name, known, hard, stat) => (known === null ? [] : [[`=${name}`, { text: name, look: "unknown" },
    number(duration(hard.growth_ppb, up)), number(stat?.bound_ns == null ? "" : duration(stat.growth_ppb, up))]]);
  return [
    ...rates.map(([name, ppb]) => [name, name.replaceAll("_", " "), number(duration(ppb, up)), ""]),
    ...sum("to the grandmaster, in all", state.gmNs, node.gm, node.gm_stat),
    ...sum("to UTC, in all", state.utcNs, node.utc, node.utc_stat),
  ];
}
