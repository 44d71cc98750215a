// One node: its status and bound, its clock sources, and the terms of its bound, as texts and tables.

import { byId, fillTable, number, put, type Cell, type Cells, type Row } from "../dom.ts";
import { NO_CLOCK, bound, duration, elapsedText, nodeNow, roundUp, signed, statusCell, type NodeNow } from "../model.ts";
import { atZone } from "../place.ts";
import { state } from "../state.ts";
import type { Bound, NodeState, Source } from "../types.ts";

/** A source's fields hold its last sample, which is current only while the daemon can read the source and the source is in order. */
const isCurrent = (source: Source): boolean => source.reachable && source.reason_code === "ok";

/** The first current source that has an offset, except a PHC, which is no reference. */
export const measuringSource = (node: NodeState): Source | undefined => node.sources.find((source) => isCurrent(source) && source.kind !== "phc" && source.offset_ns !== null);

/** " of phc:0": with hardware timestamps ptp4l measures the network card's clock, and the bound is that of the system clock. */
export const measuredClock = (source: Source | undefined): string => (source?.clock && source.clock !== "realtime" ? ` of ${source.clock}` : "");

export function offsetText(node: NodeState): string {
  const source = measuringSource(node);
  return source === undefined || source.offset_ns === null ? "—" : `${signed(source.offset_ns)}${measuredClock(source)}`;
}

const grandmasterName = (node: NodeState): string | null => node.grandmaster ?? state.grandmasterName(node.grandmaster_identity);

export const grandmasterText = (node: NodeState): string => grandmasterName(node) ?? node.grandmaster_identity ?? "—";

export function renderNode(node: NodeState, receivedAt: number, now: number): NodeNow {
  const its = nodeNow(node, receivedAt, now, state.overview?.data.headline.limits.node_bound_ns ?? null);
  renderHero(node, its);
  renderSources(node);
  renderTerms(node, its);
  return its;
}

function renderHero(node: NodeState, its: NodeNow): void {
  byId("hero").dataset.status = its.mainStatus;
  put(byId("hero-node"), [node.node, node.topology].filter(Boolean).join(" · "));
  put(byId("status"), statusCell(its.mainStatus, its.isUtcOnly ? "UTC " : "").text);
  put(byId("bound"), its.mainStatus === NO_CLOCK ? "" : its.mainNs === null ? "no bound" : bound(its.mainNs));
  put(byId("forecast"), its.forecast && `without new samples: ${its.forecast}`);
  put(byId("reference"), referenceText(node, its));
  put(byId("grandmaster-summary"), node.grandmaster_summary ?? "");
  put(byId("since"), its.inStatusMs === null ? "" : `for ${elapsedText(its.inStatusMs)}, ${sinceText(node, its)}`);
  put(byId("reason"), reasonText(node, its), "quiet");
  const utc = its.utcNs === null ? `no bound: ${node.utc?.reason || "unknown"}` : bound(its.utcNs);
  const utcText = `UTC ${its.utcStatus}, ${utc}${its.utcNs === null ? "" : utcNote(node)}`;
  put(byId("utc"), its.isUtcOnly || its.mainStatus === NO_CLOCK ? "" : utcText, "quiet");
  put(byId("advice"), adviceText(node, its));
}

/** A term of the bound that its owner can make smaller, and how. */
const ADVICE: Record<string, string> = {
  path_delay: "calibrating path_minimum_ns for this link removes the known minimum of it",
  step_tolerance: "a shorter step_threshold of ptp4l makes it smaller",
  asymmetry_uncertainty: "measuring the asymmetry of this link makes it smaller",
  path_memory: "a shorter delay request interval of ptp4l makes it smaller",
};

/** "46 % of the bound is path delay (900 ns): ..." where one term is at least a third of it. */
export function adviceText(node: NodeState, its: Pick<NodeNow, "parentNs">): string {
  if (its.parentNs === null) return "";
  const [name, ns] = Object.entries(node.terms ?? {}).toSorted(([, a], [, b]) => b - a)[0] ?? ["", 0];
  const advice = ADVICE[name];
  if (advice === undefined || ns < its.parentNs / 3) return "";
  return `${Math.round((ns / its.parentNs) * 100)} % of the bound is ${name.replaceAll("_", " ")} (${duration(ns, roundUp)}): ${advice}`;
}

function renderSources(node: NodeState): void {
  fillTable(byId("sources"), node.sources.map((source) => [
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
function renderTerms(node: NodeState, its: NodeNow): void {
  const body = byId("terms");
  if (its.parentNs === null) fillTable(body, [["none", its.utcNs === null ? `no bound: ${reasonText(node, its)}` : "no terms: a source gives UTC directly"]]);
  else fillTable(body, [...termRows(node, its, its.parentNs), ...sumRows(its)]);
  fillTable(byId("rates"), its.parentNs === null && its.utcNs === null ? [] : rateRows(node, its));
}

function referenceText(node: NodeState, its: NodeNow): string {
  if (its.mainStatus === NO_CLOCK) return "";
  if (its.isUtcOnly) return "to UTC; this node has no grandmaster";
  if (node.gm?.reason_code === "no_announce") return "grandmaster unknown: no Announce";
  if (!node.grandmaster_identity) return "no grandmaster";
  const name = grandmasterName(node);
  return `to grandmaster ${name === null ? node.grandmaster_identity : `${name} (${node.grandmaster_identity})`}`;
}

/** Why the UTC bound is not the grandmaster's. */
function utcNote(node: NodeState): string {
  if (node.sources_contradict) return ", whichever source is right";
  return node.utc_narrowed_by?.length ? `, by ${node.utc_narrowed_by.join(", ")}` : "";
}

const sinceText = (node: NodeState, its: NodeNow): string =>
  its.isAsPublished && node.since_realtime_ns !== null ? `since ${atZone(node.since_realtime_ns)}` : "computed by this page without new states";

export function reasonText(node: NodeState, its: NodeNow): string {
  if (node.reason) return node.reason;
  if (its.gmNs === null && node.gm?.reason && !its.isUtcOnly) return node.gm.reason;
  if (its.mainStatus === "HOLDOVER") return `no fresh sample for ${elapsedText((its.ageNs ?? 0) / 1e6)}; the bound grows`;
  return its.mainStatus === "UNKNOWN" ? "no fresh sample for too long" : "";
}

function sourceName(source: Source, node: NodeState): Cell | string {
  if (!isCurrent(source)) return { text: `${source.name} ✕`, className: "bad" };
  return node.falsetickers?.includes(source.name) ? { text: `${source.name} ✕ falseticker`, className: "bad" } : source.name;
}

function sourceState(source: Source): Cell | string {
  const last = source.port_state ?? source.detail ?? null;
  if (isCurrent(source)) return last ?? "—";
  const polled = source.reachable || source.since_poll_ns == null ? "" : `; last polled ${elapsedText(source.since_poll_ns / 1e6)} ago`;
  return { text: `${source.reason ?? "unreachable"}${last === null ? "" : `; last known: ${last}`}${polled}`, className: "bad" };
}

function termRows(node: NodeState, its: NodeNow, totalNs: number): Row[] {
  const { terms, stat_terms: stat = {} } = node;
  const names = [...new Set([...Object.keys(terms), ...Object.keys(stat)])];
  const growth = `growth in ${((its.ageNs ?? 0) / 1e9).toFixed(1)} s`;
  const statGrowth = its.parentStatNs === null ? undefined : its.parentStatNs - (node.parent_stat?.bound_ns ?? 0);
  return [
    ...names.filter((name) => terms[name] || stat[name]).map((name) => row(name, name.replaceAll("_", " "), terms[name], stat[name], totalNs)),
    row("growth", growth, totalNs - (node.parent?.bound_ns ?? 0), statGrowth, totalNs),
  ];
}

function row(key: string, name: string, hardNs: number | undefined, statNs: number | undefined, totalNs: number): Row {
  const share = (hardNs ?? 0) / totalNs;
  return [key, name, number(termText(hardNs)), number(termText(statNs)), hardNs === undefined ? "" : { text: `${(share * 100).toFixed(0)} %`, bar: share }];
}

const termText = (ns: number | undefined): string => (ns === undefined ? "" : duration(ns, roundUp));

function sumRows(its: NodeNow): Row[] {
  const sum = (key: string, name: string, hardNs: number | null, statNs: number | null): Row => [key, { text: name, className: "sum" },
    number(hardNs === null ? "unknown" : bound(hardNs)), number(statNs === null ? "" : bound(statNs)), ""];
  return [
    sum("=parent", "to the parent clock", its.parentNs, its.parentStatNs),
    sum("=gm", "to the grandmaster", its.gmNs, its.gmStatNs),
    sum("=utc", "to UTC", its.utcNs, its.utcStatNs),
  ];
}

function rateRows(node: NodeState, its: NodeNow): Row[] {
  const rates = Object.entries(node.rates ?? {}).filter(([, ppb]) => ppb > 0);
  const sum = (name: string, nowNs: number | null, hard: Bound | null, stat: Bound | null): Row[] => {
    const cells: Cells = [{ text: name, className: "sum" }, number(duration(hard?.growth_ppb, roundUp)), number(stat?.bound_ns == null ? "" : duration(stat.growth_ppb, roundUp))];
    return nowNs === null ? [] : [[`=${name}`, ...cells]];
  };
  return [
    ...rates.map(([name, ppb]): Row => [name, name.replaceAll("_", " "), number(duration(ppb, roundUp)), ""]),
    ...sum("to the grandmaster, total", its.gmNs, node.gm, node.gm_stat),
    ...sum("to UTC, total", its.utcNs, node.utc, node.utc_stat),
  ];
}
