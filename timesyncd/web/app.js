// Listens to the daemon and shows what it says.

import { Chart } from "./chart.js";
import { byId, fillTable, number, put } from "./dom.js";
import { Units } from "./units.js";
import { Known, alarmLook, bound, boundAt, clockTime, duration, moment, nodeNow, percent, signed, span, up } from "./model.js";

const SILENT_AFTER_MS = 5000;
const RANKS_SHOWN = 16;
const SIGNS = { SYNCHRONIZED: "●", HOLDOVER: "◐", DISRUPTED: "✕", UNKNOWN: "?" };
const LOOKS = { SYNCHRONIZED: "good", HOLDOVER: "warn", DISRUPTED: "bad", UNKNOWN: "unknown" };
const SEVERITIES = { critical: "bad", warning: "warn", info: "unknown" };

const chart = new Chart(byId("chart"), byId("chart-scale"));
const units = new Units(byId("grandmasters"), byId("unit-template"));
let known = new Known();
let heardAt = null;
let trouble = "";
let lost = 0;

function listen() {
  const stream = new EventSource("events");
  stream.onopen = () => {
    known = new Known(known.alarms);
    trouble = "";
  };
  stream.onerror = () => {
    trouble = "connection to the daemon lost, trying again";
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
  for (const kind of ["node", "grandmaster", "alarm", "job", "finding"]) {
    stream.addEventListener(kind, (event) => hear(kind, JSON.parse(event.data)));
  }
  stream.addEventListener("lost", (event) => {
    lost += JSON.parse(event.data).lost;
    stream.close(); // a new connection begins with the state of everything
    listen();
  });
}

function hear(kind, data) {
  heardAt = performance.now();
  known.take(kind, data, heardAt);
  if (kind === "node" && data.node === known.own) {
    chart.add(heardAt, offsetOf(data), nodeNow(data, heardAt, heardAt).gmNs);
  }
}

/** What stands in a source's fields is its last sample: current only while it can be read and says so. */
const isCurrent = (source) => source.reachable && source.reason === null;

/** The node's offset: that of the first source that has one now. */
const offsetOf = (node) => node.sources.find((source) => isCurrent(source) && source.offset_ns !== null)?.offset_ns ?? null;

const word = (status) => ({ text: `${SIGNS[status]} ${status}`, look: LOOKS[status] });

function render() {
  const now = performance.now();
  renderConnection(now);
  const entry = known.node.get(known.own);
  byId("main").classList.toggle("waiting", !entry);
  if (!entry) return;
  const state = nodeNow(entry.data, entry.heardAt, now);
  renderHero(entry.data, state);
  renderSources(entry.data);
  renderTerms(entry.data, state);
  chart.draw(now, state.gmNs);
  renderNodes(now);
  renderGrandmasters(now);
  renderJobs(now);
  renderFindings();
}

function renderConnection(now) {
  const silentMs = now - heardAt;
  const note = lost ? ` (${lost} events lost by this viewer)` : "";
  if (trouble) put(byId("connection"), `⚠ ${trouble}${heardAt === null ? "" : `; last heard ${span(silentMs)} ago`}`, "bad");
  else if (heardAt === null) put(byId("connection"), "connecting", "unknown");
  else if (silentMs > SILENT_AFTER_MS) put(byId("connection"), `⚠ daemon silent for ${span(silentMs)}`, "warn");
  else put(byId("connection"), `● live${note}`, "good");
}

function renderHero(node, state) {
  byId("hero").dataset.status = state.status;
  document.title = `${SIGNS[state.status]} ${state.status} ${node.node} timesyncd`;
  put(byId("node-name"), node.node);
  put(byId("status"), `${SIGNS[state.status]} ${state.status}`);
  put(byId("bound"), state.gmNs === null ? "no bound" : bound(state.gmNs));
  put(byId("to-whom"), toWhom(node));
  put(byId("unit-note"), node.grandmaster_note ?? "");
  put(byId("since"), state.lastingMs === null ? "" : `for ${span(state.lastingMs)}, ${sinceTime(node, state)}`);
  put(byId("reason"), reasonOf(node, state), "quiet");
  const utc = state.utcNs === null ? `no bound: ${node.utc?.reason || "not known"}` : bound(state.utcNs);
  put(byId("utc"), `UTC ${state.utcStatus}, ${utc}`, "quiet");
}

function toWhom(node) {
  if (!node.grandmaster_identity) return "follows no grandmaster";
  return `to grandmaster ${node.grandmaster ? `${node.grandmaster} (${node.grandmaster_identity})` : node.grandmaster_identity}`;
}

const sinceTime = (node, state) =>
  state.status === node.status ? `since ${clockTime(node.since_realtime_ns)}` : "as this page counts while nothing is heard";

function reasonOf(node, state) {
  if (node.reason) return node.reason;
  if (state.gmNs === null && node.gm?.reason) return node.gm.reason;
  if (state.status === "HOLDOVER") return `no fresh sample for ${span(state.ageNs / 1e6)}; the bound grows`;
  return state.status === "UNKNOWN" ? "no fresh sample for too long" : "";
}

function renderSources(node) {
  fillTable(byId("sources"), node.sources.map((source) => [
    source.name,
    isCurrent(source) ? source.name : { text: `${source.name} ✕ ${source.reason ?? "unreachable"}; last known:`, look: "bad" },
    source.port_state ?? "—",
    number(source.offset_ns === null ? "—" : signed(source.offset_ns)),
    number(duration(source.path_delay_ns)),
    number(source.frequency_ppb === null ? "—" : `${String(source.frequency_ppb).replace("-", "−")} ppb`),
    number(source.steps_removed === null ? "—" : String(source.steps_removed)),
  ]));
}

function renderTerms(node, state) {
  if (state.gmNs === null) return fillTable(byId("terms"), [["none", `no bound: ${reasonOf(node, state)}`]]);
  const rows = Object.entries(node.terms);
  if (state.parentNs !== null) {
    rows.push([`growth in ${(state.ageNs / 1e9).toFixed(1)} s at ${node.parent.growth_ppb / 1000} ppm`, state.parentNs - node.parent.bound_ns]);
    rows.push(["beyond the parent clock", state.gmNs - state.parentNs]);
  }
  const share = (ns) => ({ text: `${((ns / state.gmNs) * 100).toFixed(0)} %`, bar: ns / state.gmNs });
  fillTable(byId("terms"), [
    ...rows.filter(([, ns]) => ns > 0).map(([name, ns]) => [name.split(" ")[0], name.replaceAll("_", " "), number(duration(ns, up)), share(ns)]),
    ["=", { text: "bound to the grandmaster", look: "unknown" }, number(bound(state.gmNs)), ""],
  ]);
}

function renderNodes(now) {
  byId("nodes-section").hidden = known.node.size < 2;
  if (known.node.size < 2) return;
  fillTable(byId("nodes"), [...known.node.values()].map(({ data, heardAt: heard }) => {
    const state = nodeNow(data, heard, now);
    const offset = offsetOf(data);
    return [data.node, data.node, word(state.status), number(bound(state.gmNs)), number(offset === null ? "—" : signed(offset)),
      data.grandmaster_note ?? data.grandmaster ?? data.grandmaster_identity ?? "—", number(state.ageNs === null ? "—" : span(state.ageNs / 1e6))];
  }));
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

function renderJobs(now) {
  const box = byId("jobs");
  byId("no-jobs").hidden = known.job.size > 0;
  for (const article of [...box.children]) if (!known.job.has(article.dataset.key)) article.remove();
  for (const [key, { data, heardAt: heard }] of known.job) {
    let article = [...box.children].find((child) => child.dataset.key === key);
    if (!article) {
      article = byId("job-template").content.firstElementChild.cloneNode(true);
      article.dataset.key = key;
      box.append(article);
    }
    renderJob(article, data, now - heard);
  }
}

function renderJob(article, job, heardMsAgo) {
  const slow = job.ranks.find((rank) => rank.rank === job.slow_rank);
  const alignmentNs = boundAt({ bound_ns: job.alignment_ns, growth_ppb: job.alignment_growth_ppb ?? 0 }, heardMsAgo * 1e6);
  const fields = {
    name: job.job, where: `attempt ${job.attempt}, ${job.world_size} ranks, heard ${span(heardMsAgo)} ago`,
    overhead: percent(job.sync_overhead),
    slow: job.slow_rank === null ? "none" : `rank ${job.slow_rank}${slow ? ` on ${slow.node}` : ""}`,
    skew: skew(job),
    alignment: alignmentNs === null ? `not known: ${job.alignment_reason}` : duration(alignmentNs, up),
    plan: plan(job.plan), verdict: job.verdict,
    steps: `${job.step ?? "—"} newest, ${job.steps_complete} complete, ${job.steps_incomplete} incomplete`,
    more: job.ranks.length > RANKS_SHOWN ? `${job.ranks.length - RANKS_SHOWN} ranks more, which are last less often` : "",
  };
  for (const [name, text] of Object.entries(fields)) put(article.querySelector(`[data-field="${name}"]`), text);
  article.querySelector('[data-field="slow"]').classList.toggle("warn", job.slow_rank !== null);
  renderRanks(article.querySelector("tbody"), job);
}

function skew(job) {
  if (job.arrival_skew_ns === null) return "—";
  const error = job.arrival_skew_error_ns === null ? ", error not known" : ` ${bound(job.arrival_skew_error_ns)}`;
  const last = job.last_rank === null ? "last: inconclusive" : `last: rank ${job.last_rank}`;
  return `${duration(job.arrival_skew_ns)}${error}, ${last}`;
}

function plan({ mode, slack_ns: slack, guard_ns: guard, from_step: from, reason }) {
  const how = mode === "timed" ? `timed from step ${from}, slack ${duration(slack)}, guard ${duration(guard)}` : "plain";
  return reason ? `${how} (${reason})` : how;
}

function renderRanks(body, job) {
  const shown = job.ranks.toSorted((a, b) => (b.last_share ?? 0) - (a.last_share ?? 0)).slice(0, RANKS_SHOWN).toSorted((a, b) => a.rank - b.rank);
  const longest = Math.max(1, ...job.ranks.map((rank) => rank.wait_p50_ns ?? 0));
  fillTable(body, shown.map((rank) => [
    String(rank.rank),
    rank.rank === job.slow_rank ? { text: `${rank.rank} ▲ slow`, look: "warn" } : String(rank.rank),
    rank.node, word(rank.clock_status),
    { text: duration(rank.wait_p50_ns), bar: (rank.wait_p50_ns ?? 0) / longest },
    number(duration(rank.lateness_p50_ns)),
    number(percent(rank.last_share)),
  ]));
}

function renderFindings() {
  byId("no-findings").hidden = known.finding.size > 0;
  fillTable(byId("findings"), [...known.finding].map(([key, { data }]) => [
    key, { text: `▲ ${data.severity}`, look: SEVERITIES[data.severity] }, `${data.id} · ${data.subject}`,
    { text: `${data.evidence} Cause: ${data.cause} Remedy: ${data.remedy}`, chain: data.chain },
  ]));
}

listen();
render();
setInterval(render, 500);
