// The training jobs: what synchronization costs each, who causes it, and how well its clocks agree.

import { byId, fillTable, number, put } from "./dom.js";
import { bound, boundAt, countdown, duration, percent, span, stepText, up, word } from "./model.js";

const RANKS_SHOWN = 16;
const DELAYS_SHOWN = 6;
const METHODS = { ONE_CLOCK: "one clock, which all ranks read", CLOCKS: "the nodes' clocks", ENDS: "when collectives end (no clock is trusted)" };

export function renderJobs(jobs, now) {
  const box = byId("jobs");
  byId("no-jobs").hidden = jobs.size > 0;
  for (const article of [...box.children]) if (!jobs.has(article.dataset.key)) article.remove();
  for (const [key, { data, heardAt }] of jobs) {
    let article = [...box.children].find((child) => child.dataset.key === key);
    if (!article) {
      article = byId("job-template").content.firstElementChild.cloneNode(true);
      article.dataset.key = key;
      box.append(article);
    }
    renderJob(article, data, now - heardAt);
  }
}

function renderJob(article, job, heardMsAgo) {
  const fields = {
    name: job.job, where: where(job, heardMsAgo), verdict: job.verdict,
    overhead: percent(job.sync_overhead), spans: overheads(job), slow: slow(job), ratio: ratio(job.comm_compute),
    skew: skew(job), newest: newest(job), method: method(job), alignment: alignment(job, heardMsAgo),
    latency: duration(job.update_latency_p50_ns), barriers: pair(job.barrier_wait_p50_ns, job.barrier_wait_p99_ns),
    transfer: pair(job.transfer_p50_ns, job.transfer_p99_ns), staleness: staleness(job),
    response: pair(job.response_p50_ns, job.response_p99_ns), delays: delays(job.delays),
    plan: plan(job.plan), phase: phase(job), policy: job.plan.policy || "—", groups: groups(job), own: job.own_overhead === null ? "—" : `${(job.own_overhead * 100).toFixed(3)} % of its time`,
    steps: `${stepText(job.step)} newest, ${job.steps_complete} complete, ${job.steps_incomplete} incomplete`, marks: marks(job),
    more: job.ranks.length > RANKS_SHOWN ? `${job.ranks.length - RANKS_SHOWN} ranks more, which are last less often` : "",
  };
  for (const [name, text] of Object.entries(fields)) {
    const field = article.querySelector(`[data-field="${name}"]`);
    put(field, text);
    if (field.tagName === "DD") field.parentElement.hidden = text === "—";
  }
  const look = (name, looks) => { article.querySelector(`[data-field="${name}"]`).className = looks; };
  look("slow", job.straggler_rank === null ? "big" : "big warn");
  look("verdict", job.straggler_rank === null ? "verdict" : "verdict warn");
  look("method", job.trusted || job.arrival_skew_p50_ns === null ? "" : "warn");
  renderStragglers(article.querySelector('[data-rows="stragglers"]'), job.stragglers);
  renderRanks(article.querySelector('[data-rows="ranks"]'), job);
}

function where(job, heardMsAgo) {
  const run = job.run > 0 ? `, run ${job.run + 1}` : "";
  const link = job.link ? `, link ${job.link}` : "";
  return `attempt ${job.attempt}${run}, ${job.world_size} ranks${link}, heard ${span(heardMsAgo)} ago`;
}

function overheads(job) {
  const told = [["newest step", job.sync_overhead_step], ["epoch", job.sync_overhead_epoch]].filter(([, part]) => part !== null);
  return told.length ? told.map(([what, part]) => `${what} ${percent(part)}`).join(", ") : "";
}

function slow(job) {
  if (job.straggler_rank === null) return "none";
  const rank = job.ranks.find((each) => each.rank === job.straggler_rank);
  return `rank ${job.straggler_rank}${rank ? ` on ${rank.node}` : ""}`;
}

const ratio = (value) => (value === null ? "—" : `${value.toFixed(2)} : 1`);
const pair = (p50, p99) => (p50 === null ? "—" : `${duration(p50)} median, ${duration(p99)} p99`);

function skew(job) {
  if (job.arrival_skew_p50_ns === null) return "—";
  const error = job.clock_bound_ns === null ? ", error not known" : ` ${bound(job.clock_bound_ns)}`;
  return `${pair(job.arrival_skew_p50_ns, job.arrival_skew_p99_ns)}${error}`;
}

function newest(job) {
  if (job.arrival_skew_ns === null) return "—";
  const error = job.arrival_skew_error_ns === null ? ", error not known" : ` ${bound(job.arrival_skew_error_ns)}`;
  const last = job.last_rank === null ? "last: inconclusive" : `last: rank ${job.last_rank}`;
  return `${duration(job.arrival_skew_ns)}${error}, ${last}`;
}

/** By what arrivals were compared, and whether that suffices to tell who was late. */
function method(job) {
  if (job.method === null) return "—";
  const within = job.clock_bound_ns === null ? "" : `, right within ${bound(job.clock_bound_ns)}`;
  const verdict = job.trusted ? "suffices" : job.arrival_skew_p50_ns === null ? "" : "does not suffice: most differences are smaller than that";
  return `${METHODS[job.method] ?? job.method}${within}${verdict && `; ${verdict}`}`;
}

/** With the two nodes that may be the furthest apart, and for how long it will be known. */
function alignment(job, heardMsAgo) {
  const nowNs = boundAt({ bound_ns: job.alignment_ns, growth_ppb: job.alignment_growth_ppb ?? 0 }, heardMsAgo * 1e6);
  if (nowNs === null) return `not known: ${job.alignment_reason}`;
  const leftMs = job.alignment_holds_for_ns == null ? null : job.alignment_holds_for_ns / 1e6 - heardMsAgo;
  if (leftMs !== null && leftMs <= 0) return "not known any more: nothing was heard for too long";
  const nodes = job.alignment_pair ? ` (${job.alignment_pair.join(" – ")})` : "";
  return `${duration(nowNs, up)}${nodes}${leftMs === null ? "" : `, holds ${countdown(leftMs)} by itself`}`;
}

function staleness(job) {
  if (job.staleness_max === null) return "—";
  return `${job.staleness_p50 ?? "—"} updates behind, median; ${job.staleness_max} at most`;
}

function delays(all) {
  if (all.length === 0) return "—";
  const told = all.slice(0, DELAYS_SHOWN).map((each) => `${each.from_rank} → ${each.to_rank} ${duration(each.p50_ns)} ${bound(each.error_ns)}`);
  return told.join(", ") + (all.length > DELAYS_SHOWN ? `, ${all.length - DELAYS_SHOWN} pairs more` : "");
}

function plan({ mode, slack_ns: slack, guard_ns: guard, from_step: from, reason }) {
  const how = mode === "timed" ? `timed from step ${stepText(from)}, slack ${duration(slack)}, guard ${duration(guard)}` : "plain";
  return reason ? `${how} (${reason})` : how;
}

function phase({ plan: { phase: found }, link }) {
  if (!found) return "—";
  const beside = link ? ` on ${link}` : "";
  return `steps begin ${duration(found.shift_ns)} into each ${duration(found.period_ns)}${beside}, held by at most ${percent(found.hold_share_ppm / 1e6)}`;
}

function groups({ plan: { groups: levels }, groups_reason: reason }) {
  const counts = levels.map((level, outer) => `${new Set(level).size} ${outer ? "wider ones" : "groups"}`).join(", in ");
  return counts && reason ? `${counts} (${reason})` : counts || reason || "—";
}

function marks(job) {
  const lost = job.ranks.reduce((sum, rank) => sum + rank.marks_lost, 0);
  const told = [["lost", lost], ["repeated", job.marks_repeated], ["without room", job.marks_refused]].filter(([, count]) => count > 0);
  return told.length ? told.map(([what, count]) => `${count} ${what}`).join(", ") : "—";
}

function renderStragglers(body, stragglers) {
  body.parentElement.hidden = stragglers.length === 0;
  fillTable(body, stragglers.map((each) => [
    `${each.rank} ${each.where}`,
    each.verdict === "straggler" ? { text: `${each.rank} ▲ straggler`, look: "warn" } : { text: `${each.rank} ? inconclusive`, look: "unknown" },
    each.node, each.where,
    number(duration(each.lateness_p50_ns)), number(duration(each.exposed_ns)), number(percent(each.last_share)),
  ]));
}

function renderRanks(body, job) {
  const shown = job.ranks.toSorted((a, b) => (b.last_share ?? 0) - (a.last_share ?? 0)).slice(0, RANKS_SHOWN).toSorted((a, b) => a.rank - b.rank);
  const longest = Math.max(1, ...job.ranks.map((rank) => rank.wait_p50_ns ?? 0));
  fillTable(body, shown.map((rank) => [
    String(rank.rank),
    rank.rank === job.straggler_rank ? { text: `${rank.rank} ▲ slow`, look: "warn" } : String(rank.rank),
    rank.node, word(rank.clock_status),
    { text: duration(rank.wait_p50_ns), bar: (rank.wait_p50_ns ?? 0) / longest },
    number(duration(rank.wait_p99_ns)), number(duration(rank.lateness_p50_ns)), number(percent(rank.last_share)),
    number(duration(rank.exposed_p50_ns)), number(percent(rank.idle_share)), number(rank.staleness_p50 === null ? "—" : String(rank.staleness_p50)),
  ]));
}
