// The fleet in few numbers: how far apart its clocks may be, nodes by status and by grandmaster, the worst ones, and the hubs.

import { Poll, address, wanted } from "./ask.js";
import { byId, fillTable, number, put, putChildren } from "./dom.js";
import { LOOKS, SIGNS, bound, boundAt, countdown, duration, forecast, span, up, word } from "./model.js";

const ALIGNMENT_EVERY_MS = 10_000;
const WORST_SHOWN = 6;
const MISSING_SHOWN = 20;
/** Of a hub nothing was heard for so long: it is not alive. */
const HUB_SILENT_MS = 15_000;

export class Fleet {
  constructor() {
    this.alignment = null;
    this.poll = new Poll(ALIGNMENT_EVERY_MS, (answer, now) => { this.alignment = answer && { data: answer, heardAt: now }; });
  }

  /** A node by itself is no fleet: nothing of it is shown. */
  render(known, now) {
    const summary = known.fleet?.data ?? null;
    const isFleet = (summary?.nodes ?? 0) > 1;
    byId("main").classList.toggle("fleet", isFleet);
    byId("fleet-section").hidden = !isFleet;
    this.poll.tick(isFleet ? "api/v1/alignment" : null, now);
    if (isFleet) this.renderFleet(summary, known, now);
    renderHubs(known.hub, now);
    return isFleet ? summary : null;
  }

  renderFleet(summary, known, now) {
    this.renderAlignment(now);
    renderCounts(summary, known.hub);
    const names = unitNames(known.grandmaster);
    fillTable(byId("fleet-grandmasters"), Object.entries(summary.grandmasters).toSorted(([, a], [, b]) => b - a).map(([identity, count]) => [
      `gm ${identity}`,
      identity === "" ? { text: "none", look: "warn" } : { text: names.get(identity) ?? identity, href: address({ grandmaster: identity, node: null }) },
      { text: String(count), bar: count / summary.nodes },
    ]));
    fillTable(byId("fleet-worst"), summary.worst.slice(0, WORST_SHOWN).map((node) => [
      node.node, { text: node.node, href: address({ node: node.node }) }, word(node.status),
      number(bound(node.bound_ns)), { text: node.reason, look: "quiet" },
    ]));
  }

  renderAlignment(now) {
    const { data, heardAt } = this.alignment ?? {};
    const ageNs = (now - heardAt) * 1e6;
    const message = data && { bound_ns: data.alignment_ns, growth_ppb: data.growth_ppb ?? 0 };
    const isOver = data?.holds_for_ns != null && ageNs >= data.holds_for_ns;
    const nowNs = !data || isOver ? null : boundAt(message, ageNs);
    put(byId("fleet-alignment"), nowNs === null ? "not known" : duration(nowNs, up), nowNs === null ? "bound warn" : "bound");
    put(byId("fleet-pair"), !data?.pair || nowNs === null ? "" : `at most between any two clocks; furthest apart may be ${data.pair.join(" and ")}`);
    put(byId("fleet-reason"), nowNs !== null ? "" : data?.reason || (isOver ? "nothing was heard for too long" : "not told yet"));
    put(byId("fleet-forecast"), nowNs === null || data.holds_for_ns === null ? "" : `if nothing more is heard: ${forecast(message, ageNs, data.holds_for_ns)}`);
  }
}

/** A unit by what its followers call it. */
function unitNames(units) {
  const pairs = [...units.values()].flatMap(({ data }) => data.identities.map((identity) => [identity, data.name]));
  return new Map(pairs);
}

const STATUSES = ["SYNCHRONIZED", "HOLDOVER", "DISRUPTED", "UNKNOWN"];

function renderCounts(summary, hubs) {
  const primary = [...hubs.values()].map(({ data }) => data).find((hub) => hub.primary);
  const expected = primary?.nodes_expected ? ` of ${primary.nodes_expected} expected` : "";
  put(byId("fleet-count"), `${primary?.nodes_live ?? summary.nodes} nodes are heard${expected}`);
  const missing = primary?.missing ?? [];
  const rest = missing.length > MISSING_SHOWN ? ` and ${missing.length - MISSING_SHOWN} more` : "";
  put(byId("fleet-missing"), missing.length === 0 ? "" : `▲ ${missing.length} missing: ${missing.slice(0, MISSING_SHOWN).join(", ")}${rest}`, "warn");
  const chosen = wanted().get("status");
  const chips = STATUSES.map((status) => chip(status, summary.statuses[status] ?? 0, chosen));
  putChildren(byId("fleet-statuses"), chips);
}

const made = new Map();

/** A count to filter the list by; once more: no filter. */
function chip(status, count, chosen) {
  if (!made.has(status)) made.set(status, document.createElement("li"));
  const item = made.get(status);
  if (!item.firstChild) item.append(document.createElement("a"));
  const link = item.firstChild;
  link.href = address({ status: chosen === status ? null : status, node: null });
  link.setAttribute("aria-current", String(chosen === status));
  put(link, `${SIGNS[status]} ${count} ${status}`, count > 0 ? LOOKS[status] : "quiet");
  return item;
}

function renderHubs(hubs, now) {
  byId("hubs-section").hidden = hubs.size === 0;
  fillTable(byId("hubs"), [...hubs.values()].map(({ data, heardAt }) => {
    const silentMs = now - heardAt;
    const isSilent = silentMs > HUB_SILENT_MS;
    return [
      data.node, link(data),
      isSilent ? { text: "✕ silent", look: "bad" } : data.primary ? { text: "● primary", look: "good" } : { text: "◌ standby", look: "unknown" },
      number(`${data.nodes_live} of ${data.nodes_expected || data.nodes_known}`),
      number(String(data.jobs)),
      number(`${span(silentMs)} ago`),
      { text: `up ${countdown((data.published_realtime_ns - data.started_realtime_ns) / 1e6 + silentMs)}`, look: "quiet" },
    ];
  }));
}

/** What a hub says of its address is taken for a link only where it is one of the web. */
function link({ node, url }) {
  return url && /^https?:\/\//.test(url) ? { text: node, href: url } : node;
}
