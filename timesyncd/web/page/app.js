// Subscribes to the daemon's event stream and renders every part of the page.

import { fetchJson } from "./api.js";
import { Drawer } from "./drawer.js";
import { byId, fillTable, put } from "./dom.js";
import { EventList, renderFindings } from "./events.js";
import { Fleet } from "./fleet.js";
import { Grandmasters } from "./grandmasters.js";
import { HistoryCharts } from "./history.js";
import { renderJobs } from "./jobs.js";
import { NodeList } from "./list.js";
import { FleetMap } from "./map.js";
import { ReceivedStates, alarmClass, elapsedText, statusCell, timeText } from "./model.js";
import { NodeCard } from "./node.js";

const SILENT_AFTER_MS = 5000;
const RETRY_MS = 2000;
const KINDS = ["node", "grandmaster", "alarm", "job", "finding", "hub", "fleet"];

const card = new NodeCard();
const grandmasters = new Grandmasters(byId("grandmasters"), byId("grandmaster-template"));
const fleet = new Fleet();
const map = new FleetMap();
const list = new NodeList();
const events = new EventList();
const drawer = new Drawer();
const charts = new HistoryCharts(byId("history"), byId("history-template"));
let states = new ReceivedStates();
let lastReceivedAt = null;
let connectionError = "";
let eventsDropped = 0;

/** Subscribes to one node only, the daemon's own; the page requests the others while a reader looks at them. */
async function connect() {
  const own = await fetchJson("api/v1/node");
  if (own === null) return reconnect();
  const stream = new EventSource(`events?kinds=${KINDS.join(",")}&nodes=${encodeURIComponent(own.node)}`);
  stream.onopen = () => { connectionError = ""; };
  stream.onerror = () => {
    connectionError = "connection to the daemon lost; reconnecting";
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
  stream.addEventListener("reset", () => { states = new ReceivedStates(states.alarms); });
  for (const kind of KINDS) stream.addEventListener(kind, (event) => receive(kind, JSON.parse(event.data)));
  stream.addEventListener("lost", (event) => {
    eventsDropped += JSON.parse(event.data).lost;
    stream.close(); // a new connection begins with every current state
    connect();
  });
}

function reconnect() {
  connectionError = "the daemon does not answer; retrying";
  setTimeout(connect, RETRY_MS);
}

function receive(kind, data) {
  const now = performance.now();
  if (kind !== "fleet") lastReceivedAt = now; // the server computes that summary for each viewer: it shows no life of the daemon's sources
  states.update(kind, data, now);
  if (kind === "node" && data.node === states.own) card.addSample(data, now);
}

function render() {
  const now = performance.now();
  renderConnection(now);
  const entry = states.node.get(states.own);
  byId("main").classList.toggle("waiting", !entry);
  if (!entry || document.hidden) return;
  renderTitle(entry.data, card.render(entry.data, entry.receivedAt, now));
  charts.tick(entry.data.node, now);
  const summary = fleet.render(states, now);
  map.tick(summary !== null, now);
  list.render(summary, now);
  drawer.render(now);
  renderGrandmasters(now);
  renderJobs(states.job, now);
  renderFindings(states.finding);
  events.render(now);
}

function renderTitle(node, state) {
  document.title = `${statusCell(state.mainStatus, state.isUtcOnly ? "UTC " : "").text} ${node.node} timesyncd`;
  put(byId("node-name"), node.node);
}

function renderConnection(now) {
  const silentMs = now - lastReceivedAt;
  const dropped = eventsDropped ? ` (the daemon dropped ${eventsDropped} events: this browser read too slowly)` : "";
  if (connectionError) put(byId("connection"), `⚠ ${connectionError}${lastReceivedAt === null ? "" : `; last event ${elapsedText(silentMs)} ago`}`, "bad");
  else if (lastReceivedAt === null) put(byId("connection"), "connecting", "unknown");
  else if (silentMs > SILENT_AFTER_MS) put(byId("connection"), `⚠ no event from the daemon for ${elapsedText(silentMs)}`, "warn");
  else put(byId("connection"), `● live${dropped}`, "good");
}

function renderGrandmasters(now) {
  byId("no-grandmasters").hidden = states.grandmaster.size > 0;
  grandmasters.render(states.grandmaster, now);
  byId("alarm-events-block").hidden = states.alarms.length === 0;
  fillTable(byId("alarm-events"), states.alarms.map((event) => [
    `${event.node} ${event.incarnation} ${event.sequence}`,
    timeText(event.published_realtime_ns), event.name,
    { text: event.severity === event.action ? event.action : `${event.action} · ${event.severity}`, className: event.action === "clear" ? "good" : alarmClass(event.severity) },
    event.lost ? `${event.text} (${event.lost} earlier notifications lost)` : event.text,
  ]));
}

connect();
render();
setInterval(render, 500);
addEventListener("hashchange", render);
