// The fleet's summary: how far apart its clocks may be, its nodes by status and by grandmaster, the worst nodes, and the hubs.

import { Poll, hashParameters, hashWith } from "./api.js";
import { byId, fillTable, number, put, putChildren } from "./dom.js";
import { STATUS_CLASSES, STATUS_SIGNS, bound, boundAt, duration, elapsedText, forecast, remainingText, roundUp, statusCell } from "./model.js";

const ALIGNMENT_EVERY_MS = 10_000;
const MAX_WORST = 6;
const MAX_MISSING = 20;
/** A hub without a message for so long is not alive. */
const HUB_SILENT_MS = 15_000;

export class Fleet {
  constructor() {
    this.alignment = null;
    this.poll = new Poll(ALIGNMENT_EVERY_MS, (data, now) => { this.alignment = data && { data, receivedAt: now }; });
  }

  /** Returns the summary, or null for a single node, which has no fleet section. */
  render(states, now) {
    const summary = states.fleet?.data ?? null;
    const isFleet = (summary?.nodes ?? 0) > 1;
    byId("main").classList.toggle("fleet", isFleet);
    byId("fleet-section").hidden = !isFleet;
    this.poll.tick(isFleet ? "api/v1/alignment" : null, now);
    if (isFleet) this.renderFleet(summary, states, now);
    renderHubs(states.hub, now);
    return isFleet ? summary : null;
  }

  renderFleet(summary, states, now) {
    this.renderAlignment(now);
    renderCounts(summary, states.hub);
    const names = grandmasterNames(states.grandmaster);
    fillTable(byId("fleet-grandmasters"), Object.entries(summary.grandmasters).toSorted(([, a], [, b]) => b - a).map(([identity, count]) => [
      `gm ${identity}`,
      identity === "" ? { text: "none", className: "warn" } : { text: names.get(identity) ?? identity, href: hashWith({ grandmaster: identity, node: null }) },
      { text: String(count), bar: count / summary.nodes },
    ]));
    fillTable(byId("fleet-worst"), summary.worst.slice(0, MAX_WORST).map((node) => [
      node.node, { text: node.node, href: hashWith({ node: node.node }) }, statusCell(node.status),
      number(bound(node.bound_ns)), { text: node.reason, className: "quiet" },
    ]));
  }

  renderAlignment(now) {
    const { data, receivedAt } = this.alignment ?? {};
    const ageNs = (now - receivedAt) * 1e6;
    const message = data && { bound_ns: data.alignment_ns, growth_ppb: data.growth_ppb ?? 0 };
    const isExpired = data?.holds_for_ns != null && ageNs >= data.holds_for_ns;
    const nowNs = !data || isExpired ? null : boundAt(message, ageNs);
    put(byId("fleet-alignment"), nowNs === null ? "unknown" : duration(nowNs, roundUp), nowNs === null ? "bound warn" : "bound");
    put(byId("fleet-pair"), !data?.pair || nowNs === null ? "" : `the largest difference between any two clocks; the widest pair is ${data.pair.join(" and ")}`);
    put(byId("fleet-reason"), nowNs !== null ? "" : data?.reason || (isExpired ? "no new states for too long" : "not yet computed"));
    put(byId("fleet-forecast"), nowNs === null || data.holds_for_ns === null ? "" : `without new states: ${forecast(message, ageNs, data.holds_for_ns)}`);
  }
}

/** The configured name of a grandmaster by each of its clock identities. */
function grandmasterNames(grandmasters) {
  const pairs = [...grandmasters.values()].flatMap(({ data }) => data.identities.map((identity) => [identity, data.name]));
  return new Map(pairs);
}

const STATUSES = ["SYNCHRONIZED", "HOLDOVER", "DISRUPTED", "UNKNOWN"];

function renderCounts(summary, hubs) {
  const primary = [...hubs.values()].map(({ data }) => data).find((hub) => hub.primary);
  const expected = primary?.nodes_expected ? ` of ${primary.nodes_expected} expected` : "";
  put(byId("fleet-count"), `${primary?.nodes_live ?? summary.nodes} nodes reporting${expected}`);
  const missing = primary?.missing ?? [];
  const rest = missing.length > MAX_MISSING ? ` and ${missing.length - MAX_MISSING} more` : "";
  put(byId("fleet-missing"), missing.length === 0 ? "" : `▲ ${missing.length} missing: ${missing.slice(0, MAX_MISSING).join(", ")}${rest}`, "warn");
  const selected = hashParameters().get("status");
  putChildren(byId("fleet-statuses"), STATUSES.map((status) => chip(status, summary.statuses[status] ?? 0, selected)));
}

const chips = new Map();

/** The count of a status, which filters the list; the selected one removes the filter. */
function chip(status, count, selected) {
  if (!chips.has(status)) chips.set(status, document.createElement("li"));
  const item = chips.get(status);
  if (!item.firstChild) item.append(document.createElement("a"));
  const link = item.firstChild;
  link.href = hashWith({ status: selected === status ? null : status, node: null });
  link.setAttribute("aria-current", String(selected === status));
  put(link, `${STATUS_SIGNS[status]} ${count} ${status}`, count > 0 ? STATUS_CLASSES[status] : "quiet");
  return item;
}

function renderHubs(hubs, now) {
  byId("hubs-section").hidden = hubs.size === 0;
  fillTable(byId("hubs"), [...hubs.values()].map(({ data, receivedAt }) => {
    const silentMs = now - receivedAt;
    const isSilent = silentMs > HUB_SILENT_MS;
    return [
      data.node, hubLink(data),
      isSilent ? { text: "✕ silent", className: "bad" } : data.primary ? { text: "● primary", className: "good" } : { text: "◌ standby", className: "unknown" },
      number(`${data.nodes_live} of ${data.nodes_expected || data.nodes_known}`),
      number(String(data.jobs)),
      number(`${elapsedText(silentMs)} ago`),
      { text: `up ${remainingText((data.published_realtime_ns - data.started_realtime_ns) / 1e6 + silentMs)}`, className: "quiet" },
    ];
  }));
}

/** A hub's name, as a link only if the address that it publishes is HTTP: a script's address must not become one. */
function hubLink({ node, url }) {
  return url && /^https?:\/\//.test(url) ? { text: node, href: url } : node;
}
