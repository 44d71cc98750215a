// Listens to the daemon and shows what it says.

import { ask, wanted } from "./ask.js";
import { Drawer } from "./drawer.js";
import { byId, fillTable, put } from "./dom.js";
import { Fleet } from "./fleet.js";
import { renderJobs } from "./jobs.js";
import { NodeList } from "./list.js";
import { FleetMap } from "./map.js";
import { Known, alarmLook, moment, nodeNow, span, word } from "./model.js";
import { Events, renderFindings } from "./news.js";
import { NodeCard } from "./node.js";
import { Past } from "./past.js";
import { Units } from "./units.js";

const SILENT_AFTER_MS = 5000;
const AGAIN_MS = 2000;
const KINDS = ["node", "grandmaster", "alarm", "job", "finding", "hub", "fleet"];

const card = new NodeCard();
const units = new Units(byId("grandmasters"), byId("unit-template"));
const fleet = new Fleet();
const map = new FleetMap();
const list = new NodeList();
const events = new Events();
const drawer = new Drawer();
const past = new Past(byId("past"), byId("history-template"));
let known = new Known();
let heardAt = null;
let trouble = "";
let lost = 0;

/** Of the nodes only the own one is told here: others are asked for as they are looked at. */
async function listen() {
  const own = await ask("api/v1/node");
  if (own === null) return again();
  const stream = new EventSource(`events?kinds=${KINDS.join(",")}&nodes=${encodeURIComponent(own.node)}`);
  stream.onopen = () => { trouble = ""; };
  stream.onerror = () => {
    trouble = "connection to the daemon lost, trying again";
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
  };
  stream.addEventListener("reset", () => { known = new Known(known.alarms); });
  for (const kind of KINDS) stream.addEventListener(kind, (event) => hear(kind, JSON.parse(event.data)));
  stream.addEventListener("lost", (event) => {
    lost += JSON.parse(event.data).lost;
    stream.close(); // a new connection begins with the state of everything
    listen();
  });
}

function again() {
  trouble = "no answer from the daemon, trying again";
  setTimeout(listen, AGAIN_MS);
}

function hear(kind, data) {
  const now = performance.now();
  if (kind !== "fleet") heardAt = now; // that is counted for each viewer, whatever else is told
  known.take(kind, data, now);
  if (kind === "node" && data.node === known.own) card.take(data, now);
}

function render() {
  const now = performance.now();
  renderConnection(now);
  const entry = known.node.get(known.own);
  byId("main").classList.toggle("waiting", !entry);
  if (!entry || document.hidden) return;
  renderTitle(entry.data, card.render(entry.data, entry.heardAt, now));
  past.tick(entry.data.node, now);
  const summary = fleet.render(known, now);
  map.tick(summary !== null, now);
  list.render(summary, now);
  drawer.render(now);
  renderGrandmasters(now);
  renderJobs(known.job, now);
  renderFindings(known.finding);
  events.render(now);
}

function renderTitle(node, state) {
  document.title = `${word(state.main, state.alone ? "UTC " : "").text} ${node.node} timesyncd`;
  put(byId("node-name"), node.node);
}

function renderConnection(now) {
  const silentMs = now - heardAt;
  const note = lost ? ` (${lost} events lost by this viewer)` : "";
  if (trouble) put(byId("connection"), `⚠ ${trouble}${heardAt === null ? "" : `; last heard ${span(silentMs)} ago`}`, "bad");
  else if (heardAt === null) put(byId("connection"), "connecting", "unknown");
  else if (silentMs > SILENT_AFTER_MS) put(byId("connection"), `⚠ daemon silent for ${span(silentMs)}`, "warn");
  else put(byId("connection"), `● live${note}`, "good");
}

function renderGrandmasters(now) {
  byId("no-grandmasters").hidden = known.grandmaster.size > 0;
  units.render(known.grandmaster, now);
  byId("alarm-events-block").hidden = known.alarms.length === 0;
  fillTable(byId("alarm-events"), known.alarms.map((event) => [
    `${event.node} ${event.incarnation} ${event.sequence}`,
    moment(event.published_realtime_ns), event.name,
    { text: event.severity === event.action ? event.action : `${event.action} · ${event.severity}`, look: event.action === "clear" ? "good" : alarmLook(event.severity) },
    event.lost ? `${event.text} (${event.lost} before it were lost)` : event.text,
  ]));
}

listen();
render();
setInterval(render, 500);
addEventListener("hashchange", render);
