// Subscribes to the daemon's event stream, and paints the view that the address names.

import { Poll, ROOT, fetchJson } from "./api.ts";
import { byId } from "./dom.ts";
import { Frame } from "./frame.ts";
import { KINDS, ReceivedStates, nodeNow, type Kind, type Kinds } from "./model.ts";
import { place } from "./place.ts";
import type { ViewName } from "./route.ts";
import { renderSimulation } from "./simulation.ts";
import { state } from "./state.ts";
import type { BuildInfo, Grandmaster, HandledFinding, Job, List, NodeState } from "./types.ts";
import { FleetView } from "./views/fleet.ts";
import { GrandmasterView } from "./views/grandmaster_view.ts";
import { JobView } from "./views/job_view.ts";
import { NodeView } from "./views/node_view.ts";
import { TimelineView } from "./views/timeline_view.ts";

const RETRY_MS = 2_000;
const PAINT_EVERY_MS = 500;
const HANDLED_EVERY_MS = 10_000;

const frame = new Frame();
const fleet = new FleetView();
const node = new NodeView();
const grandmaster = new GrandmasterView();
const job = new JobView();
const timeline = new TimelineView();
const handled = new Poll<List<HandledFinding>>(HANDLED_EVERY_MS, (body) => { state.handled = body?.items ?? []; });
let lastReceivedAt: number | null = null;
let lastRealtimeNs = 0;
let fault = "";
let eventsDropped = 0;

/** Subscribes to one node only, the daemon's own; the page requests the others while a reader looks at them. */
async function connect(): Promise<void> {
  const own = await fetchJson<NodeState>("api/v1/node");
  if (own === null) {
    fault = "the daemon does not answer; retrying";
    setTimeout(() => void connect(), RETRY_MS);
    return;
  }
  void showBuild();
  const stream = new EventSource(`${ROOT}events?kinds=${KINDS.join(",")}&nodes=${encodeURIComponent(own.node)}`);
  stream.onopen = () => { fault = ""; };
  stream.onerror = () => {
    fault = "connection to the daemon lost; reconnecting";
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => void connect(), RETRY_MS);
  };
  stream.addEventListener("reset", () => { state.received = new ReceivedStates(state.received.alarms); });
  for (const kind of KINDS) stream.addEventListener(kind, (event: MessageEvent<string>) => receive(kind, JSON.parse(event.data)));
  stream.addEventListener("lost", (event: MessageEvent<string>) => {
    eventsDropped += (JSON.parse(event.data) as { lost: number }).lost;
    stream.close(); // a new connection begins with every current state
    void connect();
  });
}

/** At each connection, since another version may answer after a restart. */
async function showBuild(): Promise<void> {
  const build = await fetchJson<BuildInfo>("api/v1/build");
  if (build === null) return;
  const commit = build.commit === null ? "unknown commit" : `commit ${build.commit}`;
  byId("build").textContent = `timesyncd ${build.version} (${commit}, Python ${build.python})`;
}

function receive<K extends Kind>(kind: K, data: Kinds[K]): void {
  const now = performance.now();
  if (kind !== "fleet") {
    lastReceivedAt = now; // the server computes that summary for each viewer: it shows no life of the daemon's sources
    lastRealtimeNs = Math.max(lastRealtimeNs, "published_realtime_ns" in data ? (data.published_realtime_ns as number) : 0);
  }
  state.received.update(kind, data, now);
  if (kind === "node") node.received(data as NodeState, now);
  if (kind === "grandmaster") grandmaster.received(data as Grandmaster);
  if (kind === "job") job.received(data as Job);
}

/** At the root a fleet's daemon shows the fleet, and a node alone itself. */
const viewNow = (): ViewName => place.route.view ?? (state.isFleet ? "fleet" : "node");

function paint(): void {
  const now = performance.now();
  const live = frame.renderLiveness(lastReceivedAt, lastRealtimeNs, now, fault, eventsDropped);
  const own = state.received.node.get(state.received.own ?? "");
  byId("main").classList.toggle("waiting", !own);
  if (own) frame.renderTitle(own.data, nodeNow(own.data, own.receivedAt, now), live.isLive);
  if (!own || document.hidden) return;
  const view = viewNow();
  frame.renderPlace(view);
  fleet.tick(now);
  handled.tick("api/v1/findings/handled", now);
  renderSimulation(state.overview?.data ?? null);
  if (view === "fleet") fleet.render(now);
  else if (view === "node") node.render(now);
  else if (view === "grandmaster") grandmaster.render(now);
  else if (view === "job") job.render(now);
  else timeline.render(now);
}

place.onChange(paint);
addEventListener("popstate", () => place.read());
place.read();
void connect();
setInterval(paint, PAINT_EVERY_MS);
