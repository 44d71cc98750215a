// The training jobs: what synchronization costs each, and how well its clocks agree.

import { byId, fillTable, number, put } from "./dom.js";
import { bound, boundAt, countdown, duration, percent, span, up, word } from "./model.js";

const RANKS_SHOWN = 16;

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
  const slow = job.ranks.find((rank) => rank.rank === job.slow_rank);
  const fields = {
    name: job.job, where: `attempt ${job.attempt}, ${job.world_size} ranks, heard ${span(heardMsAgo)} ago`,
    overhead: percent(job.sync_overhead),
    slow: job.slow_rank === null ? "none" : `rank ${job.slow_rank}${slow ? ` on ${slow.node}` : ""}`,
    skew: skew(job), alignment: alignment(job, heardMsAgo),
    plan: plan(job.plan), verdict: job.verdict,
    steps: `${job.step ?? "—"} newest, ${job.steps_complete} complete, ${job.steps_incomplete} incomplete`,
    more: job.ranks.length > RANKS_SHOWN ? `${job.ranks.length - RANKS_SHOWN} ranks more, which are last less often` : "",
  };
  for (const [name, text] of Object.entries(fields)) put(article.querySelector(`[data-field="${name}"]`), text);
  article.querySelector('[data-field="slow"]').classList.toggle("warn", job.slow_rank !== null);
  renderRanks(article.querySelector("tbody"), job);
}

/** With the two nodes that may be the furthest apart, and for how long it will be known. */
function alignment(job, heardMsAgo) {
  const nowNs = boundAt({ bound_ns: job.alignment_ns, growth_ppb: job.alignment_growth_ppb ?? 0 }, heardMsAgo * 1e6);
  if (nowNs === null) return `not known: ${job.alignment_reason}`;
  const leftMs = job.alignment_holds_for_ns == null ? null : job.alignment_holds_for_ns / 1e6 - heardMsAgo;
  if (leftMs !== null && leftMs <= 0) return "not known any more: nothing was heard for too long";
  const pair = job.alignment_pair ? ` (${job.alignment_pair.join(" – ")})` : "";
  return `${duration(nowNs, up)}${pair}${leftMs === null ? "" : `, holds ${countdown(leftMs)} by itself`}`;
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
