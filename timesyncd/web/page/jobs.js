// The training jobs: what synchronization costs each job, which rank delays the others, and how well its clocks agree.

import { byId, fillTable, number, put } from "./dom.js";
import { bound, boundAt, duration, elapsedText, percent, remainingText, roundUp, statusCell, stepText } from "./model.js";

const MAX_RANKS = 16;
const MAX_DELAYS = 6;
const METHODS = { one_clock: "one clock that all ranks read", clock_bounds: "the nodes' clocks", collective_ends: "the ends of collectives (no clock is trusted)" };

export function renderJobs(jobs, now) {
  const box = byId("jobs");
  byId("no-jobs").hidden = jobs.size > 0;
  for (const article of [...box.children]) if (!jobs.has(article.dataset.key)) article.remove();
  for (const [key, { data, receivedAt }] of jobs) {
    let article = [...box.children].find((child) => child.dataset.key === key);
    if (!article) {
      article = byId("job-template").content.firstElementChild.cloneNode(true);
      article.dataset.key = key;
      box.append(article);
    }
    renderJob(article, data, now - receivedAt);
  }
}

function renderJob(article, job, sinceReceivedMs) {
  const fields = {
    name: job.job, where: attemptText(job, sinceReceivedMs), verdict: job.verdict,
    overhead: percent(job.sync_overhead), "step-and-epoch": stepAndEpoch(job), straggler: stragglerText(job), ratio: ratio(job.comm_compute),
    skew: skewText(job), newest: newestStep(job), method: methodText(job), alignment: alignmentText(job, sinceReceivedMs),
    latency: duration(job.update_latency_p50_ns), barriers: pair(job.barrier_wait_p50_ns, job.barrier_wait_p99_ns),
    transfer: pair(job.transfer_p50_ns, job.transfer_p99_ns), staleness: stalenessText(job),
    response: pair(job.response_p50_ns, job.response_p99_ns), delays: delaysText(job.delays),
    plan: planText(job.plan), phase: phaseText(job), policy: job.plan.policy || "—", groups: groupsText(job), own: job.own_overhead === null ? "—" : `${(job.own_overhead * 100).toFixed(3)} % of its time`,
    steps: `${stepText(job.step)} newest, ${job.steps_complete} complete, ${job.steps_incomplete} incomplete`, marks: marksText(job),
    more: job.ranks.length > MAX_RANKS ? `${job.ranks.length - MAX_RANKS} more ranks, which arrive last less often` : "",
  };
  for (const [name, text] of Object.entries(fields)) {
    const field = article.querySelector(`[data-field="${name}"]`);
    put(field, text);
    if (field.tagName === "DD") field.parentElement.hidden = text === "—";
  }
  const setClass = (name, className) => { article.querySelector(`[data-field="${name}"]`).className = className; };
  setClass("straggler", job.straggler_rank === null ? "big" : "big warn");
  setClass("verdict", job.straggler_rank === null ? "verdict" : "verdict warn");
  setClass("method", job.trusted || job.arrival_skew_p50_ns === null ? "" : "warn");
  renderStragglers(article.querySelector('[data-rows="stragglers"]'), job.stragglers);
  renderRanks(article.querySelector('[data-rows="ranks"]'), job);
}

function attemptText(job, sinceReceivedMs) {
  const run = job.run > 0 ? `, run ${job.run + 1}` : "";
  const link = job.link ? `, link ${job.link}` : "";
  return `attempt ${job.attempt}${run}, ${job.world_size} ranks${link}, updated ${elapsedText(sinceReceivedMs)} ago`;
}

function stepAndEpoch(job) {
  const known = [["newest step", job.sync_overhead_step], ["epoch", job.sync_overhead_epoch]].filter(([, part]) => part !== null);
  return known.map(([what, part]) => `${what} ${percent(part)}`).join(", ");
}

function stragglerText(job) {
  if (job.straggler_rank === null) return "none";
  const rank = job.ranks.find((each) => each.rank === job.straggler_rank);
  return `rank ${job.straggler_rank}${rank ? ` on ${rank.node}` : ""}`;
}

const ratio = (value) => (value === null ? "—" : `${value.toFixed(2)} : 1`);
const pair = (p50, p99) => (p50 === null ? "—" : `${duration(p50)} median, ${duration(p99)} p99`);

function skewText(job) {
  if (job.arrival_skew_p50_ns === null) return "—";
  const error = job.clock_bound_ns === null ? ", error unknown" : ` ${bound(job.clock_bound_ns)}`;
  return `${pair(job.arrival_skew_p50_ns, job.arrival_skew_p99_ns)}${error}`;
}

function newestStep(job) {
  if (job.arrival_skew_ns === null) return "—";
  const error = job.arrival_skew_error_ns === null ? ", error unknown" : ` ${bound(job.arrival_skew_error_ns)}`;
  const last = job.last_rank === null ? "last: inconclusive" : `last: rank ${job.last_rank}`;
  return `${duration(job.arrival_skew_ns)}${error}, ${last}`;
}

/** How arrivals were compared, and whether the error is small enough to name the rank that was late. */
function methodText(job) {
  if (job.method === null) return "—";
  const within = job.clock_bound_ns === null ? "" : `, error ${bound(job.clock_bound_ns)}`;
  const verdict = job.trusted ? "small enough to name the late rank" : job.arrival_skew_p50_ns === null ? "" : "too large to name the late rank: most differences are smaller";
  return `${METHODS[job.method] ?? job.method}${within}${verdict && `; ${verdict}`}`;
}

/** The alignment now, the two nodes that may differ most, and when it expires without new states. */
function alignmentText(job, sinceReceivedMs) {
  const nowNs = boundAt({ bound_ns: job.alignment_ns, growth_ppb: job.alignment_growth_ppb ?? 0 }, sinceReceivedMs * 1e6);
  if (nowNs === null) return `unknown: ${job.alignment_reason}`;
  const leftMs = job.alignment_holds_for_ns == null ? null : job.alignment_holds_for_ns / 1e6 - sinceReceivedMs;
  if (leftMs !== null && leftMs <= 0) return "expired: no new states for too long";
  const nodes = job.alignment_pair ? ` (${job.alignment_pair.join(" – ")})` : "";
  return `${duration(nowNs, roundUp)}${nodes}${leftMs === null ? "" : `, expires in ${remainingText(leftMs)} without new states`}`;
}

function stalenessText(job) {
  if (job.staleness_max === null) return "—";
  return `median ${job.staleness_p50 ?? "—"} updates behind, at most ${job.staleness_max}`;
}

function delaysText(delays) {
  if (delays.length === 0) return "—";
  const shown = delays.slice(0, MAX_DELAYS).map((each) => `${each.from_rank} → ${each.to_rank} ${duration(each.p50_ns)} ${bound(each.error_ns)}`);
  return shown.join(", ") + (delays.length > MAX_DELAYS ? `, ${delays.length - MAX_DELAYS} more pairs` : "");
}

function planText({ mode, slack_ns: slack, guard_ns: guard, from_step: from, reason }) {
  const how = mode === "timed" ? `timed from step ${stepText(from)}, slack ${duration(slack)}, guard ${duration(guard)}` : "plain";
  return reason ? `${how} (${reason})` : how;
}

function phaseText({ plan: { phase: found }, link }) {
  if (!found) return "—";
  const onLink = link ? ` on ${link}` : "";
  return `steps start ${duration(found.shift_ns)} into each period of ${duration(found.period_ns)}${onLink}, delayed by at most ${percent(found.hold_share_ppm / 1e6)}`;
}

function groupsText({ plan: { groups: levels }, groups_reason: reason }) {
  const counts = levels.map((level, outer) => `${new Set(level).size} ${outer ? "larger groups" : "groups"}`).join(", in ");
  return counts && reason ? `${counts} (${reason})` : counts || reason || "—";
}

function marksText(job) {
  const lost = job.ranks.reduce((sum, rank) => sum + rank.marks_lost, 0);
  const counts = [["lost", lost], ["duplicate", job.marks_repeated], ["refused: no space", job.marks_refused]].filter(([, count]) => count > 0);
  return counts.length ? counts.map(([what, count]) => `${count} ${what}`).join(", ") : "—";
}

function renderStragglers(body, stragglers) {
  body.parentElement.hidden = stragglers.length === 0;
  fillTable(body, stragglers.map((each) => [
    `${each.rank} ${each.where}`,
    each.verdict === "straggler" ? { text: `${each.rank} ▲ straggler`, className: "warn" } : { text: `${each.rank} ? inconclusive`, className: "unknown" },
    each.node, each.where,
    number(duration(each.lateness_p50_ns)), number(duration(each.exposed_ns)), number(percent(each.last_share)),
  ]));
}

function renderRanks(body, job) {
  const shown = job.ranks.toSorted((a, b) => (b.last_share ?? 0) - (a.last_share ?? 0)).slice(0, MAX_RANKS).toSorted((a, b) => a.rank - b.rank);
  const longestNs = Math.max(1, ...job.ranks.map((rank) => rank.wait_p50_ns ?? 0));
  fillTable(body, shown.map((rank) => [
    String(rank.rank),
    rank.rank === job.straggler_rank ? { text: `${rank.rank} ▲ straggler`, className: "warn" } : String(rank.rank),
    rank.node, statusCell(rank.clock_status),
    { text: duration(rank.wait_p50_ns), bar: (rank.wait_p50_ns ?? 0) / longestNs },
    number(duration(rank.wait_p99_ns)), number(duration(rank.lateness_p50_ns)), number(percent(rank.last_share)),
    number(duration(rank.exposed_p50_ns)), number(percent(rank.idle_share)), number(rank.staleness_p50 === null ? "—" : String(rank.staleness_p50)),
  ]));
}
