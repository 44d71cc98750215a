// Subscribes to the daemon's event stream, and paints the view that the address names.

import { Poll, ROOT, fetchJson } from "./api.ts";
import { byId } from "./dom.ts";
import { Frame } from "./frame.ts";
import { liveness } from "./liveness.ts";
import { KINDS, ReceivedStates, nodeNow, type Entry, type Kind, type Kinds } from "./model.ts";
import { atZone, place } from "./place.ts";
import type { ViewName } from "./route.ts";
import { renderSimulation } from "./simulation.ts";
import { state } from "./state.ts";
import { absentTab, fleetTab, nodeTab, type Tab } from "./title.ts";
import type { BuildInfo, Grandmaster, HandledFinding, Job, List, NodeState } from "./types.ts";
import { FleetView } from "./views/fleet.ts";
import { GrandmasterView } from "./views/grandmaster_view.ts";
import { JobView } from "./views/job_view.ts";
import { NodeView } from "./views/node_view.ts";
import { TimelineView } from "./views/timeline_view.ts";

const RETRY_MS = 2_000;
/** A connection that is half open, or whose daemon is stopped, shows no error: after this time without an event the page connects again. */
const RECONNECT_AFTER_MS = 8_000;
const CONNECT_WITHIN_MS = 6_000;
const PAINT_EVERY_MS = 500;
const HANDLED_EVERY_MS = 10_000;

const frame = new Frame();
const fleet = new FleetView(() => paintSoon());
const node = new NodeView();
const grandmaster = new GrandmasterView();
const job = new JobView();
const timeline = new TimelineView();
const handled = new Poll<List<HandledFinding>>(HANDLED_EVERY_MS, (body) => { state.handled = body?.items ?? []; }, 0);
let lastReceivedAt: number | null = null;
let lastRealtimeNs = 0;
let fault = "";
let eventsDropped = 0;
let stream: EventSource | null = null;
let connectedAt = 0;
let attempt = 0;
/** The page connected again since nothing arrived: then a snapshot of states that it has already is no sign of life. */
let isDoubted = false;
let snapshotId = "";
let before = state.received;
/** The kinds of which something arrived: the first of each is painted at once. */
const seen = new Set<Kind>();
let isPaintDue = false;

/** Subscribes to one node only, the daemon's own; the page requests the others while a reader looks at them. */
async function connect(): Promise<void> {
  const its = (attempt += 1);
  stream?.close();
  stream = null;
  connectedAt = performance.now();
  const build = await fetchJson<BuildInfo>("api/v1/build", CONNECT_WITHIN_MS);
  if (its !== attempt) return;
  if (build === null) {
    fault = "the daemon does not answer; retrying";
    setTimeout(() => { if (its === attempt) void connect(); }, RETRY_MS);
    return;
  }
  showBuild(build);
  subscribe(new EventSource(`${ROOT}events?kinds=${KINDS.join(",")}&nodes=${encodeURIComponent(build.node)}`));
}

function subscribe(opened: EventSource): void {
  stream = opened;
  connectedAt = performance.now();
  opened.onopen = () => { fault = ""; };
  opened.onerror = () => {
    fault = "connection to the daemon lost; reconnecting";
    if (opened.readyState === EventSource.CLOSED && opened === stream) setTimeout(() => { if (opened === stream) void connect(); }, RETRY_MS);
  };
  opened.addEventListener("reset", (event: MessageEvent<string>) => {
    snapshotId = event.lastEventId;
    before = state.received;
    state.received = new ReceivedStates(before.alarms);
  });
  for (const kind of KINDS) opened.addEventListener(kind, (event: MessageEvent<string>) => receive(kind, JSON.parse(event.data), event.lastEventId));
  opened.addEventListener("lost", (event: MessageEvent<string>) => {
    eventsDropped += (JSON.parse(event.data) as { lost: number }).lost;
    void connect(); // a new connection begins with every current state
  });
}

/** Connects again where nothing arrives, though no error is reported. */
function watch(now: number): void {
  if (stream === null || now - Math.max(lastReceivedAt ?? 0, connectedAt) <= RECONNECT_AFTER_MS) return;
  isDoubted = lastReceivedAt !== null;
  void connect();
}

/** At each connection, since another version may answer after a restart. */
function showBuild(build: BuildInfo): void {
  const commit = build.commit === null ? "unknown commit" : `commit ${build.commit}`;
  byId("build").textContent = `timesyncd ${build.version} (${commit}, Python ${build.python})`;
}

/** The server computes the fleet's summary for each viewer: it shows no life of the daemon's sources. Nor does an old state in a doubted snapshot. */
function receive<K extends Kind>(kind: K, data: Kinds[K], id: string): void {
  const now = performance.now();
  const publishedNs = "published_realtime_ns" in data ? (data.published_realtime_ns as number) : 0;
  const isOld = isDoubted && id === snapshotId && publishedNs <= lastRealtimeNs;
  if (kind !== "fleet" && !isOld) {
    lastReceivedAt = now;
    lastRealtimeNs = Math.max(lastRealtimeNs, publishedNs);
    isDoubted = false;
  }
  state.received.update(kind, data, isOld ? (before.receivedAt(kind, data) ?? now) : now);
  if (!seen.has(kind)) paintSoon();
  seen.add(kind);
  if (kind === "node") node.received(data as NodeState, now);
  if (kind === "grandmaster") grandmaster.received(data as Grandmaster);
  if (kind === "job") job.received(data as Job);
}

/** At the root a fleet's daemon shows the fleet, and a node alone itself. */
const viewNow = (): ViewName => place.route.view ?? (state.isFleet ? "fleet" : "node");

function paint(): void {
  const now = performance.now();
  watch(now);
  const live = liveness(lastReceivedAt, now, lastRealtimeNs === 0 ? "" : atZone(lastRealtimeNs), fault);
  state.isLive = live.isLive;
  frame.renderLiveness(live);
  const own = state.received.node.get(state.received.own ?? "");
  const view = viewNow();
  const isKnown = own !== undefined || (view === "fleet" && state.isFleet);
  byId("main").classList.toggle("waiting", !isKnown);
  if (own) frame.renderTitle(own.data.node, tabOf(view, own, now, live.isLive));
  fleet.tick(now);
  if (isKnown && !document.hidden) renderView(view, now);
  frame.renderConnection(live, lastReceivedAt === null ? null : now - lastReceivedAt, place.asOfNs || lastRealtimeNs, eventsDropped);
}

function tabOf(view: ViewName, own: Entry<NodeState>, now: number, isLive: boolean): Tab {
  const { overview } = state;
  if (view !== "node" && state.isFleet && overview !== null) return fleetTab(overview.data.headline, own.data.node, isLive);
  const shown = view === "node" ? node.shown : own;
  if (shown === undefined) return absentTab(node.wanted ?? own.data.node, isLive);
  const { data, receivedAt } = shown;
  return nodeTab(data.node, nodeNow(data, receivedAt, now), isLive);
}

/** After all that has arrived so far. */
function paintSoon(): void {
  if (isPaintDue) return;
  isPaintDue = true;
  setTimeout(() => { isPaintDue = false; paint(); });
}

/** Every view states as of when its numbers are. */
function renderView(view: ViewName, now: number): void {
  frame.renderPlace(view);
  handled.tick("api/v1/findings/handled?limit=1000", now);
  renderSimulation(state.overview?.data ?? null);
  place.asOfNs = lastRealtimeNs;
  if (view === "fleet") fleet.render(now);
  else if (view === "node") node.render(now);
  else if (view === "grandmaster") grandmaster.render(now);
  else if (view === "job") job.render(now);
  else timeline.render(now);
}

place.onChange(paint);
addEventListener("popstate", () => place.read());
place.read();
paint();
void connect();
setInterval(paint, PAINT_EVERY_MS);
