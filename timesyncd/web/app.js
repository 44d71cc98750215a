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
    chart.add(heardAt, offsetOf(data), nodeNow(data, heardAt, heardAt).mainNs);
  }
}

/** What stands in a source's fields is its last sample: current only while it can be read and says so. */
const isCurrent = (source) => source.reachable && source.reason === null;

/** The node's offset: that of the first source that has one now against its reference; a PHC is none. */
const offsetOf = (node) => node.sources.find((source) => isCurrent(source) && source.kind !== "phc" && source.offset_ns !== null)?.offset_ns ?? null;

const word = (status, prefix = "") => ({ text: `${SIGNS[status]} ${prefix}${status}`, look: LOOKS[status] });

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
  chart.draw(now, state.mainNs);
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
  const said = word(state.main, state.alone ? "UTC " : "").text;
  byId("hero").dataset.status = state.main;
  document.title = `${said} ${node.node} timesyncd`;
  put(byId("node-name"), node.node);
  put(byId("status"), said);
  put(byId("bound"), state.mainNs === null ? "no bound" : bound(state.mainNs));
  put(byId("forecast"), state.forecast && `if samples stop: ${state.forecast}`);
  put(byId("to-whom"), toWhom(node, state));
  put(byId("unit-note"), node.grandmaster_note ?? "");
  put(byId("since"), state.lastingMs === null ? "" : `for ${span(state.lastingMs)}, ${sinceTime(node, state)}`);
  put(byId("reason"), reasonOf(node, state), "quiet");
  const utc = state.utcNs === null ? `no bound: ${node.utc?.reason || "not known"}` : bound(state.utcNs);
  put(byId("utc"), state.alone ? "" : `UTC ${state.utcStatus}, ${utc}`, "quiet");
}

function toWhom(node, state) {
  if (state.alone) return "to UTC; no grandmaster is followed";
  if (!node.grandmaster_identity) return "follows no grandmaster";
  return `to grandmaster ${node.grandmaster ? `${node.grandmaster} (${node.grandmaster_identity})` : node.grandmaster_identity}`;
}

const sinceTime = (node, state) =>
  state.asWritten ? `since ${clockTime(node.since_realtime_ns)}` : "as this page counts while nothing is heard";

function reasonOf(node, state) {
  if (node.reason) return node.reason;
  if (state.gmNs === null && node.gm?.reason && !state.alone) return node.gm.reason;
  if (state.main === "HOLDOVER") return `no fresh sample for ${span(state.ageNs / 1e6)}; the bound grows`;
  return state.main === "UNKNOWN" ? "no fresh sample for too long" : "";
}

function renderSources(node) {
  fillTable(byId("sources"), node.sources.map((source) => [
    source.name,
    sourceName(source, node),
    sourceState(source),
    number(source.offset_ns === null ? "—" : `${signed(source.offset_ns)}${source.error_ns == null ? "" : ` ${bound(source.error_ns)}`}`),
    number(duration(source.path_delay_ns)),
    number(source.frequency_ppb === null ? "—" : `${String(source.frequency_ppb).replace("-", "−")} ppb`),
    number(source.steps_removed === null ? "—" : String(source.steps_removed)),
  ]));
}

function sourceName(source, node) {
  if (!isCurrent(source)) return { text: `${source.name} ✕`, look: "bad" };
  return node.falsetickers?.includes(source.name) ? { text: `${source.name} ✕ falseticker`, look: "bad" } : source.name;
}

function sourceState(source) {
  const known = source.port_state ?? source.detail ?? null;
  if (isCurrent(source)) return known ?? "—";
  return { text: `${source.reason ?? "unreachable"}${known === null ? "" : `; last known: ${known}`}`, look: "bad" };
}

/** Each term of the hard bound and of the statistical one, their sums, and how fast they grow. */
function renderTerms(node, state) {
  const body = byId("terms");
  if (state.parentNs === null) fillTable(body, [["none", state.utcNs === null ? `no bound: ${reasonOf(node, state)}` : "no terms: UTC is known from a source alone"]]);
  else fillTable(body, [...termRows(node, state), ...sumRows(node, state)]);
  fillTable(byId("rates"), state.parentNs === null && state.utcNs === null ? [] : rateRows(node, state));
}

function termRows(node, state) {
  const { terms, stat_terms: stat = {} } = node;
  const names = [...new Set([...Object.keys(terms), ...Object.keys(stat)])];
  const grown = `growth in ${(state.ageNs / 1e9).toFixed(1)} s`;
  return [
    ...names.filter((name) => terms[name] || stat[name]).map((name) => row(name, name.replaceAll("_", " "), terms[name], stat[name], state)),
    row("growth", grown, state.parentNs - node.parent.bound_ns, state.parentStatNs === null ? undefined : state.parentStatNs - node.parent_stat.bound_ns, state),
  ];
}

function row(key, name, hardNs, statNs, state) {
  const share = (hardNs ?? 0) / state.parentNs;
  return [key, name, number(told(hardNs)), number(told(statNs)), hardNs === undefined ? "" : { text: `${(share * 100).toFixed(0)} %`, bar: share }];
}

const told = (ns) => (ns === undefined || ns === null ? "" : duration(ns, up));

function sumRows(node, state) {
  const sum = (key, name, hardNs, statNs) => [key, { text: name, look: "unknown" },
    number(hardNs === null ? "unknown" : bound(hardNs)), number(statNs === null ? "" : bound(statNs)), ""];
  return [
    sum("=parent", "to the parent clock", state.parentNs, state.parentStatNs),
    sum("=gm", "to the grandmaster", state.gmNs, state.gmStatNs),
    sum("=utc", "to UTC", state.utcNs, state.utcStatNs),
  ];
}

function rateRows(node, state) {
  const rates = Object.entries(node.rates ?? {}).filter(([, ppb]) => ppb > 0);
  const sum = (name, known, hard, stat) => (known === null ? [] : [[`=${name}`, { text: name, look: "unknown" },
    number(duration(hard.growth_ppb, up)), number(stat?.bound_ns == null ? "" : duration(stat.growth_ppb, up))]]);
  return [
    ...rates.map(([name, ppb]) => [name, name.replaceAll("_", " "), number(duration(ppb, up)), ""]),
    ...sum("to the grandmaster, in all", state.gmNs, node.gm, node.gm_stat),
    ...sum("to UTC, in all", state.utcNs, node.utc, node.utc_stat),
  ];
}

function renderNodes(now) {
  byId("nodes-section").hidden = known.node.size < 2;
  if (known.node.size < 2) return;
  fillTable(byId("nodes"), [...known.node.values()].map(({ data, heardAt: heard }) => {
    const state = nodeNow(data, heard, now);
    const offset = offsetOf(data);
    return [data.node, data.node, word(state.main, state.alone ? "UTC " : ""), number(bound(state.mainNs)), number(offset === null ? "—" : signed(offset)),
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
