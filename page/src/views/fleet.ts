// The fleet: its headline, its timing chain, its racks over time, its bounds over time, what needs attention, and its parts as tables.

import { Poll } from "../api.ts";
import { TimeChart } from "../chart.ts";
import { chainOf } from "../chain.ts";
import { byId, copyText, fillTable, h, number, put, putChildren, type Cell } from "../dom.ts";
import { HeatMap, columnAt } from "../heat.ts";
import { STATUSES, STATUS_CLASSES, STATUS_SIGNS, bound, boundAt, causeFilter, count, duration, elapsedText, forecast, remainingText, roundUp, statusCell, withMicro, type Entry } from "../model.ts";
import { at, atZone, place } from "../place.ts";
import { RackHistory, fleetNumbers, type RacksAnswer } from "../racks.ts";
import { ChainPicture } from "../sankey.ts";
import { state } from "../state.ts";
import { timeOfDay } from "../time.ts";
import { isPhone } from "../size.ts";
import { RangeRequest, seriesPath, spanQuery, tableOf, type SeriesAnswer } from "../series.ts";
import { Track, joined, originText, type Table } from "../track.ts";
import type { FleetMap, Headline, Hub, Overview, Status } from "../types.ts";
import { renderAttention, type Urgent } from "./findings.ts";
import { MapPicture } from "./map.ts";
import { NodeList } from "./list.ts";

const OVERVIEW_EVERY_MS = 2_000;
/** The map of a large fleet is a large document. */
const mapEveryMs = (nodes: number): number => (nodes > 1_000 ? 10_000 : 3_000);
const NEXT_OVERVIEW_WITHIN_MS = 4_000;
const RACK_STEP_MS = 10_000;
/** In a shorter time range two columns may have the same minute. */
const SECONDS_BELOW_MS = 600_000;
const MAX_MISSING = 20;
/** A hub without a message for so long is not alive. */
const HUB_SILENT_MS = 15_000;

export class FleetView {
  private readonly overviewPoll = new Poll<Overview>(OVERVIEW_EVERY_MS, (data, now) => {
    const isFirst = state.overview === null;
    if (data !== null) state.overview = { data, receivedAt: now };
    if (isFirst) this.onFirstOverview();
  });
  private mapPoll = new Poll<FleetMap>(mapEveryMs(0), (map) => this.receivedMap(map));
  private mapInterval = mapEveryMs(0);
  private readonly racks = new RackHistory(RACK_STEP_MS);
  private readonly bounds = new Track(4, 35_000);
  private stored: Table = { times: [], values: [[], [], [], []] };
  private readonly series = new RangeRequest<SeriesAnswer>(() => seriesPath("fleet", ""), (answer) => {
    this.stored = tableOf(answer, [["without_bound", "maximum"], ["p50_bound_ns", "median"], ["p99_bound_ns", "maximum"], ["worst_bound_ns", "maximum"]]);
  });
  private storedRacks: RacksAnswer | null = null;
  private readonly racksRequest = new RangeRequest<RacksAnswer>(() => `api/v1/fleet/racks?${spanQuery({ points: "240" })}`, (answer) => { this.storedRacks = answer; });
  private rackCells: ReturnType<RackHistory["matrix"]> | null = null;
  private filter: string | null = null;
  private readonly picture = new MapPicture();
  private readonly list = new NodeList();
  private readonly chain = new ChainPicture(document.getElementById("chain") as unknown as SVGSVGElement, (filter) => place.link("fleet", null, filter));
  private readonly rackMap = new HeatMap(byId("racks"), {
    name: "widest bound of each rack over time", height: 380, stops: ["heat-1", "heat-2", "heat-3", "heat-4", "heat-5"],
    scale: { name: "heat", from: "100 ns", to: "1 ms", others: ["no bound"] },
    cursor: () => columnAt(this.rackCells?.atMs ?? [], place.cursorMs), cellText: (row, column) => this.rackText(row, column), onClick: (row, column) => this.rackClick(row, column),
  });
  private readonly chart = new TimeChart(byId("alignment-chart"), {
    name: "bounds of the fleet over time", height: 230, log: true, limits: () => this.limits(),
    lines: [
      { label: "nodes without a bound", colour: "no-bound", bars: true },
      { label: "median", colour: "series-2" }, { label: "99 %", colour: "series-3" }, { label: "worst", colour: "series-7" },
    ],
  });

  constructor(private readonly onFirstOverview: () => void) {}

  /**
   * What every view needs of the fleet: the overview and the map, at their own pace. The overview is what the first look needs, so
   * it is requested at once, and nothing large before it is there.
   */
  tick(now: number): void {
    const { overview } = state;
    this.overviewPoll.tick(overview === null || state.isFleet || overview.data.simulation !== null ? "api/v1/fleet/overview?findings=0" : null, now);
    if (overview === null) return;
    const every = mapEveryMs(state.received.fleet?.data.nodes ?? 0);
    if (every !== this.mapInterval) {
      this.mapInterval = every;
      this.mapPoll = new Poll<FleetMap>(every, (map) => this.receivedMap(map));
    }
    this.mapPoll.tick(state.isFleet ? "api/v1/fleet/map" : null, now);
  }

  private receivedMap(map: FleetMap | null): void {
    if (map === null) return;
    const atMs = map.published_realtime_ns / 1e6;
    const { p50Ns, p99Ns, worstNs, without } = fleetNumbers(map);
    this.racks.add(atMs, map);
    this.bounds.add(atMs, [without, p50Ns, p99Ns, worstNs]);
    this.picture.update(map);
  }

  render(now: number): void {
    const { overview } = state;
    for (const id of ["headline", "chain-section", "racks-section", "alignment-section"]) byId(id).hidden = !state.isFleet;
    byId("fleet-section").hidden = !state.isFleet;
    if (state.received.own !== null) renderAttention(state.received.finding, state.isFleet && overview !== null ? urgentOf(overview.data) : [], now);
    this.followFilter();
    renderHubs(state.received.hub, now);
    this.list.render(state.isFleet && overview !== null, now);
    if (!state.isFleet) return;
    if (overview !== null) {
      place.asOfNs = overview.data.as_of_realtime_ns;
      renderHeadline(overview.data);
      renderAlignment(overview, now);
      this.chain.draw(chainOf(overview.data, isPhone()), overview.data.headline.limits.node_bound_ns, location.search);
      renderCounts(overview.data);
      renderGrandmasters(overview.data);
      renderWorst(overview.data);
    }
    this.series.tick("fleet", now);
    this.racksRequest.tick("racks", now);
    this.renderCharts();
  }

  /** Of a click on the chain, a rack or a status a reader sees the effect: the list may be below the window. */
  private followFilter(): void {
    const filter = JSON.stringify([place.filters.topology, place.filters.grandmaster, place.filters.status]);
    const hasChanged = this.filter !== null && filter !== this.filter;
    this.filter = filter;
    if (hasChanged) byId("nodes-section").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  private renderCharts(): void {
    const [from, to] = place.limits(Date.now());
    this.chart.set(joined(this.stored, this.bounds));
    const origin = (isStored: boolean): string => originText(isStored, this.bounds.times, place.fixedLimits, (ms) => at(ms * 1e6));
    put(byId("alignment-note"), origin(this.stored.times.length > 0));
    const cells = this.racks.matrix(from, to, (atMs) => timeOfDay(atMs, place.zone).slice(0, to - from < SECONDS_BELOW_MS ? 8 : 5), this.storedRacks);
    put(byId("racks-note"), origin(cells.rows.length > 0 && (this.storedRacks?.racks.length ?? 0) > 0));
    const drawn = JSON.stringify([cells.atMs.length, cells.atMs[0], cells.rows.length, this.bounds.times.length, this.storedRacks?.begin_ms, place.zone, place.cursorMs]);
    if (this.rackCells !== null && drawn === byId("racks").dataset.drawn) return;
    byId("racks").dataset.drawn = drawn;
    this.rackCells = cells;
    this.rackMap.set(cells);
  }

  private limits(): { value: number; text: string }[] {
    const ns = state.overview?.data.headline.limits.node_bound_ns ?? null;
    return ns === null ? [] : [{ value: ns, text: `limit ${duration(ns)}` }];
  }

  private rackText(row: number, column: number): string {
    const cells = this.rackCells;
    const value = cells?.cells[row * (cells.columns.length) + column];
    if (cells === null || value === undefined) return "";
    const bound = value === -1 ? "no reading" : value < 0 ? "no bound" : `widest ±${duration(10 ** (2 + value * 4), roundUp)}`;
    return `${cells.rows[row]}, ${timeOfDay(cells.atMs[column] ?? 0, place.zone)}: ${bound}`;
  }

  private rackClick(row: number, column: number): void {
    const rack = this.rackCells?.places[row];
    const atMs = this.rackCells?.atMs[column];
    if (rack !== undefined && atMs !== undefined) place.go(place.with({ topology: rack, at: new Date(atMs).toISOString() }));
  }
}

function renderHeadline(overview: Overview): void {
  const { headline } = overview;
  const isWhole = headline.without_bound === 0 || headline.verdict === "exceeded" || headline.verdict === "unknown";
  byId("headline").dataset.verdict = isWhole ? headline.verdict : "warn";
  put(byId("headline-text"), withMicro(headline.text));
  put(byId("headline-causes"), causesText(headline));
  put(byId("headline-jobs"), jobsText(headline));
  put(byId("headline-limit"), limitText(headline));
  const drawn = JSON.stringify([headline.actions, headline.causes, location.search]);
  const box = byId("headline-actions");
  if (box.dataset.drawn === drawn) return;
  box.dataset.drawn = drawn;
  box.replaceChildren(...headline.actions.map((action) => actionButton(action, overview)), byId("copy-link"));
}

/** The sentence itself names a cause that all of them share: then at most its reason is left to say. */
function causesText({ causes, without_bound: without }: Headline): string {
  const [only] = causes;
  if (only === undefined || causes.length > 1 || only.nodes < without) return causes.map(causeText).join(" ");
  return only.kind === "reason" ? "" : `Reason: ${only.reason || "none given"}.`;
}

const causeText = (cause: Headline["causes"][number]): string => {
  const since = cause.since_realtime_ns === null ? "" : ` since ${atZone(cause.since_realtime_ns)}`;
  const where = cause.kind === "reason" ? "" : ` are behind the same ${cause.kind}, ${cause.name}`;
  return `${count(cause.nodes)} of them${where || (cause.nodes > 1 ? " have the same reason" : "")}${since}: ${cause.reason || "no reason given"}.`;
};

const jobsText = ({ jobs }: Headline): string =>
  jobs.length === 0 ? "" : `Affected jobs: ${jobs.map((job) => `${job.job} (${job.alignment_ns === null ? job.reason || "alignment unknown" : `aligned within ${duration(job.alignment_ns, roundUp)}`})`).join(", ")}.`;

/** The limits that are exceeded, and what the clocks without a bound share. */
function urgentOf(overview: Overview): Urgent[] {
  const { headline } = overview;
  const limitNs = headline.limits.fleet_alignment_ns;
  const wide: Urgent = {
    tag: "LIMIT", className: "bad", text: `the fleet's clocks agree within ${duration(headline.alignment_ns, roundUp)}, the limit is ${duration(limitNs)}`,
    href: place.link("node", headline.pair?.[1] ?? null), why: headline.pair === null ? "" : `the widest pair is ${headline.pair.join(" and ")}`,
  };
  const causes = headline.causes.map((cause): Urgent => ({
    tag: "NO BOUND", className: "unknown", text: `${count(cause.nodes)} node${cause.nodes === 1 ? "" : "s"}${cause.kind === "reason" ? "" : ` of the same ${cause.kind}, ${cause.name}`}`,
    href: causeLink(cause, overview), why: `${cause.since_realtime_ns === null ? "" : `since ${atZone(cause.since_realtime_ns)} · `}${cause.reason || "no reason given"}`,
  }));
  return [...(headline.verdict === "exceeded" ? [wide] : []), ...wideJobs(headline), ...causes];
}

/** The jobs above their limit as one line, which names the widest. */
function wideJobs({ jobs, limits: { job_alignment_ns: limitNs } }: Headline): Urgent[] {
  const wide = jobs.filter(({ verdict }) => verdict === "exceeded").toSorted((a, b) => (b.alignment_ns ?? 0) - (a.alignment_ns ?? 0));
  const [widest] = wide;
  if (widest === undefined) return [];
  return [{
    tag: "LIMIT", className: "bad", text: `the clocks of ${widest.job} agree within ${duration(widest.alignment_ns, roundUp)}, the limit is ${duration(limitNs)}`,
    href: place.link("job", widest.job_id), why: wide.length === 1 ? "" : `${count(wide.length)} jobs are above the limit; this is the widest`,
  }];
}

const causeLink = (cause: Headline["causes"][number], { statuses }: Overview): string => place.link("fleet", null, causeFilter(cause, statuses));

function limitText({ limits, verdict }: Headline): string {
  const known = [["fleet", limits.fleet_alignment_ns], ["job", limits.job_alignment_ns], ["node's bound", limits.node_bound_ns]].filter(([, ns]) => ns !== null);
  if (known.length === 0) return "No limit is configured, so nothing is judged: [limits] in the configuration.";
  return `Limits: ${known.map(([name, ns]) => `${name} ${duration(ns as number)}`).join(", ")}; the fleet's alignment is ${verdict === "within" ? "within its limit" : verdict === "exceeded" ? "above its limit" : "not judged"}.`;
}

const namedText = (named: number, all: number): string => `${named < all ? `${count(named)} of ` : ""}${count(all)} node${all === 1 ? "" : "s"}`;

/** A list of nodes to drain is copied; a subject to inspect is opened. */
function actionButton(action: Headline["actions"][number], overview: Overview): HTMLElement {
  const { headline } = overview;
  const [node] = action.nodes;
  if (action.kind === "drain") {
    const button = h("button", { type: "button", title: `${action.text}: ${action.nodes.join(",")}` }, `Copy the names to drain: ${namedText(action.nodes.length, headline.without_bound)}`);
    button.addEventListener("click", () => void copyText(button, action.nodes.join(",")));
    return button;
  }
  if (action.kind === "acknowledge") return h("a", { class: "button", href: place.link("timeline", null, { note: "acknowledge", finding: action.finding, subject: action.subject }) }, action.text);
  const cause = headline.causes.find(({ name }) => name === action.subject);
  return h("a", { class: "button", href: cause === undefined ? place.link("node", node ?? action.subject) : causeLink(cause, overview) }, action.text);
}

function renderAlignment({ data: { headline }, receivedAt }: Entry<Overview>, now: number): void {
  // as of the overview, like every number beside it, until the next one is overdue
  const silentMs = now - receivedAt;
  const ageNs = silentMs < NEXT_OVERVIEW_WITHIN_MS ? 0 : silentMs * 1e6;
  const message = { bound_ns: headline.alignment_ns, growth_ppb: headline.growth_ppb ?? 0 };
  const isExpired = headline.holds_for_ns !== null && ageNs >= headline.holds_for_ns;
  const nowNs = isExpired ? null : boundAt(message, ageNs);
  put(byId("fleet-alignment"), nowNs === null ? "unknown" : duration(nowNs, roundUp), nowNs === null ? "bound warn" : "bound");
  put(byId("fleet-pair"), !headline.pair || nowNs === null ? "" : `${count(headline.compared)} of ${count(headline.nodes)} clocks; the widest pair is ${headline.pair.join(" and ")}`);
  put(byId("fleet-reason"), nowNs !== null ? "" : headline.reason || (isExpired ? "no new states for too long" : "not yet computed"));
  put(byId("fleet-forecast"), nowNs === null || headline.holds_for_ns === null ? "" : `without new states: ${forecast(message, ageNs, headline.holds_for_ns, headline.limits.fleet_alignment_ns)}`);
}

function renderGrandmasters({ chain }: Overview): void {
  const names = grandmasterNames();
  const followers = new Map<string, number>();
  for (const { grandmaster_identity: identity, nodes } of chain) followers.set(identity, (followers.get(identity) ?? 0) + nodes);
  const all = [...followers.values()].reduce((sum, nodes) => sum + nodes, 0);
  fillTable(byId("fleet-grandmasters"), [...followers].toSorted(([, a], [, b]) => b - a).map(([identity, nodes]) => [
    `gm ${identity}`,
    identity === "" ? { text: "none", className: "warn" } : { text: names.get(identity) ?? identity, href: place.link("fleet", null, { grandmaster: identity }) },
    { text: String(nodes), bar: nodes / all },
  ]));
}

function renderWorst({ worst }: Overview): void {
  fillTable(byId("fleet-worst"), worst.map((node) => [
    node.node, { text: node.node, href: place.link("node", node.node) }, statusCell(node.status),
    number(bound(node.bound_ns)), { text: node.reason, className: "quiet" },
  ]));
}

/** The configured name of a grandmaster by each of its clock identities. */
function grandmasterNames(): Map<string, string> {
  return new Map([...state.received.grandmaster.values()].flatMap(({ data }) => data.identities.map((identity): [string, string] => [identity, data.name])));
}

function renderCounts({ statuses, headline, hubs }: Overview): void {
  const primary = hubs.find((hub) => hub.primary);
  const expected = primary?.nodes_expected ? ` of ${count(primary.nodes_expected)} expected` : "";
  put(byId("fleet-count"), `${count(primary?.nodes_live ?? headline.nodes)} nodes reporting${expected}`);
  const missing = primary?.missing ?? [];
  const rest = missing.length > MAX_MISSING ? ` and ${missing.length - MAX_MISSING} more` : "";
  put(byId("fleet-missing"), missing.length === 0 ? "" : `▲ ${missing.length} missing: ${missing.slice(0, MAX_MISSING).join(", ")}${rest}`, "warn");
  putChildren(byId("fleet-statuses"), STATUSES.map((status) => chip(status, statuses[status] ?? 0)));
}

const chips = new Map<Status, HTMLElement>();

/** The count of a status, which filters the list; the selected one removes the filter. */
function chip(status: Status, nodes: number): HTMLElement {
  const item = chips.get(status) ?? h("li", {}, h("a"));
  chips.set(status, item);
  const link = item.firstElementChild as HTMLAnchorElement;
  const isSelected = place.filters.status === status;
  link.href = place.link("fleet", null, { ...place.filters, status: isSelected ? null : status });
  if (isSelected) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
  put(link, `${STATUS_SIGNS[status]} ${nodes} ${status}`, nodes > 0 ? STATUS_CLASSES[status] : "quiet");
  return item;
}

function renderHubs(hubs: Map<string, Entry<Hub>>, now: number): void {
  byId("hubs-section").hidden = hubs.size === 0;
  fillTable(byId("hubs"), [...hubs.values()].map(({ data, receivedAt }) => {
    const silentMs = now - receivedAt;
    const role: Cell = silentMs > HUB_SILENT_MS ? { text: "✕ silent", className: "bad" } : data.primary ? { text: "● primary", className: "good" } : { text: "◌ standby", className: "unknown" };
    return [
      data.node, hubLink(data), role,
      number(`${data.nodes_live} of ${data.nodes_expected || data.nodes_known}`),
      number(String(data.jobs)),
      number(`${elapsedText(silentMs)} ago`),
      { text: `up ${remainingText((data.published_realtime_ns - data.started_realtime_ns) / 1e6 + silentMs)}`, className: "quiet" },
    ];
  }));
}

/** A hub's name, as a link only if the address that it publishes is HTTP: a script's address must not become one. */
export function hubLink({ node, url }: Hub): Cell | string {
  return url && /^https?:\/\//.test(url) ? { text: node, href: url } : node;
}
