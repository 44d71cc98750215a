// One node: its status and bound, its clock sources, and the terms of its bound.

import { Chart } from "./chart.js";
import { byId, fillTable, number, put } from "./dom.js";
import { NO_CLOCK, bound, duration, elapsedText, nodeNow, roundUp, signed, statusCell, timeOfDay } from "./model.js";

/** A source's fields hold its last sample, which is current only while the daemon can read the source and the source is in order. */
const isCurrent = (source) => source.reachable && source.reason_code === "ok";

/** The first current source that has an offset, except a PHC, which is no reference. */
const measuringSource = (node) => node.sources.find((source) => isCurrent(source) && source.kind !== "phc" && source.offset_ns !== null);

/** " of phc:0": with hardware timestamps ptp4l measures the network card's clock, and the bound is that of the system clock. */
const measuredClock = (source) => (source?.clock && source.clock !== "realtime" ? ` of ${source.clock}` : "");

export function offsetText(node) {
  const source = measuringSource(node);
  return source === undefined ? "—" : `${signed(source.offset_ns)}${measuredClock(source)}`;
}

export const grandmasterText = (node) => node.grandmaster_summary ?? node.grandmaster ?? node.grandmaster_identity ?? "—";

/** The elements of one node: those whose ids begin with this prefix. */
export class NodeCard {
  constructor(prefix = "") {
    this.at = (name) => byId(prefix + name);
    this.chart = new Chart(this.at("chart"), this.at("chart-scale"));
    this.node = null;
    this.clock = "";
  }

  /** Adds a received state to the chart. */
  addSample(node, now) {
    const source = measuringSource(node);
    const clock = source === undefined ? this.clock : measuredClock(source);
    if (this.node !== node.node || this.clock !== clock) this.chart.clear();
    Object.assign(this, { node: node.node, clock });
    this.chart.add(now, source?.offset_ns ?? null, nodeNow(node, now, now).mainNs);
  }

  render(node, receivedAt, now) {
    const state = nodeNow(node, receivedAt, now);
    this.renderHero(node, state);
    this.renderSources(node);
    this.renderTerms(node, state);
    this.chart.draw(now, state.mainNs);
    put(this.at("chart-clock"), this.clock);
    return state;
  }

  renderHero(node, state) {
    const { at } = this;
    at("hero").dataset.status = state.mainStatus;
    put(at("hero-node"), node.node);
    put(at("status"), statusCell(state.mainStatus, state.isUtcOnly ? "UTC " : "").text);
    put(at("bound"), state.mainStatus === NO_CLOCK ? "" : state.mainNs === null ? "no bound" : bound(state.mainNs));
    put(at("forecast"), state.forecast && `without new samples: ${state.forecast}`);
    put(at("reference"), referenceText(node, state));
    put(at("grandmaster-summary"), node.grandmaster_summary ?? "");
    put(at("since"), state.inStatusMs === null ? "" : `for ${elapsedText(state.inStatusMs)}, ${sinceText(node, state)}`);
    put(at("reason"), reasonText(node, state), "quiet");
    const utc = state.utcNs === null ? `no bound: ${node.utc?.reason || "unknown"}` : bound(state.utcNs);
    const utcText = `UTC ${state.utcStatus}, ${utc}${state.utcNs === null ? "" : utcNote(node)}`;
    put(at("utc"), state.isUtcOnly || state.mainStatus === NO_CLOCK ? "" : utcText, "quiet");
  }

  renderSources(node) {
    fillTable(this.at("sources"), node.sources.map((source) => [
      source.name,
      sourceName(source, node),
      sourceState(source),
      number(source.offset_ns === null ? "—" : `${signed(source.offset_ns)}${measuredClock(source)}${source.error_ns == null ? "" : ` ${bound(source.error_ns)}`}`),
      number(duration(source.path_delay_ns)),
      number(source.frequency_ppb === null ? "—" : `${String(source.frequency_ppb).replace("-", "−")} ppb`),
      number(source.steps_removed === null ? "—" : String(source.steps_removed)),
    ]));
  }

  /** Each term of the hard and of the statistical bound, their sums, and their growth. */
  renderTerms(node, state) {
    const body = this.at("terms");
    if (state.parentNs === null) fillTable(body, [["none", state.utcNs === null ? `no bound: ${reasonText(node, state)}` : "no terms: a source gives UTC directly"]]);
    else fillTable(body, [...termRows(node, state), ...sumRows(state)]);
    fillTable(this.at("rates"), state.parentNs === null && state.utcNs === null ? [] : rateRows(node, state));
  }
}

function referenceText(node, state) {
  if (state.mainStatus === NO_CLOCK) return "";
  if (state.isUtcOnly) return "to UTC; this node has no grandmaster";
  if (node.gm?.reason_code === "no_announce") return "grandmaster unknown: no Announce";
  if (!node.grandmaster_identity) return "no grandmaster";
  return `to grandmaster ${node.grandmaster ? `${node.grandmaster} (${node.grandmaster_identity})` : node.grandmaster_identity}`;
}

/** Why the UTC bound is not the grandmaster's. */
function utcNote(node) {
  if (node.sources_contradict) return ", whichever source is right";
  return node.utc_narrowed_by?.length ? `, by ${node.utc_narrowed_by.join(", ")}` : "";
}

const sinceText = (node, state) =>
  state.isAsPublished ? `since ${timeOfDay(node.since_realtime_ns)}` : "computed by this page without new states";

export function reasonText(node, state) {
  if (node.reason) return node.reason;
  if (state.gmNs === null && node.gm?.reason && !state.isUtcOnly) return node.gm.reason;
  if (state.mainStatus === "HOLDOVER") return `no fresh sample for ${elapsedText(state.ageNs / 1e6)}; the bound grows`;
  return state.mainStatus === "UNKNOWN" ? "no fresh sample for too long" : "";
}

function sourceName(source, node) {
  if (!isCurrent(source)) return { text: `${source.name} ✕`, className: "bad" };
  return node.falsetickers?.includes(source.name) ? { text: `${source.name} ✕ falseticker`, className: "bad" } : source.name;
}

function sourceState(source) {
  const last = source.port_state ?? source.detail ?? null;
  if (isCurrent(source)) return last ?? "—";
  const polled = source.reachable || source.since_poll_ns == null ? "" : `; last polled ${elapsedText(source.since_poll_ns / 1e6)} ago`;
  return { text: `${source.reason ?? "unreachable"}${last === null ? "" : `; last known: ${last}`}${polled}`, className: "bad" };
}

function termRows(node, state) {
  const { terms, stat_terms: stat = {} } = node;
  const names = [...new Set([...Object.keys(terms), ...Object.keys(stat)])];
  const growth = `growth in ${(state.ageNs / 1e9).toFixed(1)} s`;
  return [
    ...names.filter((name) => terms[name] || stat[name]).map((name) => row(name, name.replaceAll("_", " "), terms[name], stat[name], state)),
    row("growth", growth, state.parentNs - node.parent.bound_ns, state.parentStatNs === null ? undefined : state.parentStatNs - node.parent_stat.bound_ns, state),
  ];
}

function row(key, name, hardNs, statNs, state) {
  const share = (hardNs ?? 0) / state.parentNs;
  return [key, name, number(termText(hardNs)), number(termText(statNs)), hardNs === undefined ? "" : { text: `${(share * 100).toFixed(0)} %`, bar: share }];
}

const termText = (ns) => (ns === undefined || ns === null ? "" : duration(ns, roundUp));

function sumRows(state) {
  const sum = (key, name, hardNs, statNs) => [key, { text: name, className: "unknown" },
    number(hardNs === null ? "unknown" : bound(hardNs)), number(statNs === null ? "" : bound(statNs)), ""];
  return [
    sum("=parent", "to the parent clock", state.parentNs, state.parentStatNs),
    sum("=gm", "to the grandmaster", state.gmNs, state.gmStatNs),
    sum("=utc", "to UTC", state.utcNs, state.utcStatNs),
  ];
}

function rateRows(node, state) {
  const rates = Object.entries(node.rates ?? {}).filter(([, ppb]) => ppb > 0);
  const sum = (name, nowNs, hard, stat) => (nowNs === null ? [] : [[`=${name}`, { text: name, className: "unknown" },
    number(duration(hard.growth_ppb, roundUp)), number(stat?.bound_ns == null ? "" : duration(stat.growth_ppb, roundUp))]]);
  return [
    ...rates.map(([name, ppb]) => [name, name.replaceAll("_", " "), number(duration(ppb, roundUp)), ""]),
    ...sum("to the grandmaster, total", state.gmNs, node.gm, node.gm_stat),
    ...sum("to UTC, total", state.utcNs, node.utc, node.utc_stat),
  ];
}
