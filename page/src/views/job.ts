// The training jobs as texts and tables: what synchronization costs each job, which rank delays the others, and how well its clocks agree.

import { byId, fillTable, h, number, put } from "../dom.ts";
import { aboveText, bound, boundAt, duration, elapsedText, percent, remainingText, roundUp, statusCell, stepText, withMicro, type Entry } from "../model.ts";
import { place } from "../place.ts";
import { state } from "../state.ts";
import type { Job, Plan, Straggler } from "../types.ts";

const MAX_RANKS = 16;
const MAX_DELAYS = 6;
const METHODS: Record<string, string> = { one_clock: "one clock that all ranks read", clock_bounds: "the nodes' clocks", collective_ends: "the ends of collectives (no clock is trusted)" };

export function renderJobs(jobs: Map<string, Entry<Job>>, selected: string | null, now: number): void {
  const box = byId("jobs");
  const articles = box.children as HTMLCollectionOf<HTMLElement>;
  byId("no-jobs").hidden = jobs.size > 0;
  for (const article of [...articles]) if (!jobs.has(article.dataset.key ?? "")) article.remove();
  for (const [key, { data, receivedAt }] of jobs) {
    let article = [...articles].find((child) => child.dataset.key === key);
    if (!article) {
      article = byId<HTMLTemplateElement>("job-template").content.firstElementChild?.cloneNode(true) as HTMLElement;
      article.dataset.key = key;
      box.append(article);
    }
    if (key === selected && box.firstElementChild !== article) box.prepend(article);
    renderJob(article, data, now - receivedAt);
  }
}

function renderJob(article: HTMLElement, job: Job, sinceReceivedMs: number): void {
  const fields: Record<string, string> = {
    where: attemptText(job, sinceReceivedMs), verdict: withMicro(job.verdict),
    overhead: percent(job.sync_overhead), "step-and-epoch": stepAndEpoch(job), straggler: stragglerText(job), ratio: ratio(job.comm_compute),
    skew: skewText(job), newest: newestStep(job), method: methodText(job), alignment: alignmentText(job, sinceReceivedMs),
    latency: duration(job.update_latency_p50_ns), barriers: pair(job.barrier_wait_p50_ns, job.barrier_wait_p99_ns),
    transfer: pair(job.transfer_p50_ns, job.transfer_p99_ns), staleness: stalenessText(job),
    response: pair(job.response_p50_ns, job.response_p99_ns), delays: delaysText(job.delays),
    plan: planText(job.plan), phase: phaseText(job), policy: job.plan.policy || "—", groups: groupsText(job), own: job.own_overhead === null ? "—" : `${(job.own_overhead * 100).toFixed(3)} % of its time`,
    steps: `${stepText(job.step)} newest; ${job.steps_complete} synchronizations complete, ${job.steps_incomplete} incomplete`, marks: marksText(job),
    more: job.ranks.length > MAX_RANKS ? `${job.ranks.length - MAX_RANKS} more ranks, which arrive last less often` : "",
  };
  for (const [name, text] of Object.entries(fields)) {
    const field = fieldOf(article, name);
    put(field, text);
    if (field.tagName === "DD" && field.parentElement) field.parentElement.hidden = text === "—";
  }
  const setClass = (name: string, className: string): void => { fieldOf(article, name).className = className; };
  setClass("straggler", job.straggler_rank === null ? "big" : "big warn");
  setClass("verdict", job.straggler_rank === null ? "verdict" : "verdict warn");
  setClass("method", job.trusted || job.arrival_skew_p50_ns === null ? "" : "warn");
  renderStragglers(article.querySelector('[data-rows="stragglers"]') as HTMLElement, job.stragglers);
  renderRanks(article.querySelector('[data-rows="ranks"]') as HTMLElement, job);
  const title = fieldOf(article, "name");
  if (!title.querySelector("a")) title.replaceChildren(h("a"));
  const link = title.querySelector("a") as HTMLAnchorElement;
  put(link, job.job);
  link.href = place.link("job", job.job_id);
}

const fieldOf = (article: HTMLElement, name: string): HTMLElement => article.querySelector(`[data-field="${name}"]`) as HTMLElement;

function attemptText(job: Job, sinceReceivedMs: number): string {
  const run = job.run > 0 ? `, run ${job.run + 1}` : "";
  const link = job.link ? `, link ${job.link}` : "";
  return `attempt ${job.attempt}${run}, ${job.world_size} ranks${link}, updated ${elapsedText(sinceReceivedMs)} ago`;
}

function stepAndEpoch(job: Job): string {
  const known: [string, number | null][] = [["newest step", job.sync_overhead_step], ["epoch", job.sync_overhead_epoch]];
  return known.filter(([, part]) => part !== null).map(([what, part]) => `${what} ${percent(part)}`).join(", ");
}

function stragglerText(job: Job): string {
  if (job.straggler_rank === null) return "none";
  const rank = job.ranks.find((each) => each.rank === job.straggler_rank);
  return `rank ${job.straggler_rank}${rank ? ` on ${rank.node}` : ""}`;
}

const ratio = (value: number | null): string => (value === null ? "—" : `${value.toFixed(2)} : 1`);
const pair = (p50: number | null, p99: number | null): string => (p50 === null ? "—" : `${duration(p50)} median, ${duration(p99)} p99`);

function skewText(job: Job): string {
  if (job.arrival_skew_p50_ns === null) return "—";
  const error = job.clock_bound_ns === null ? ", error unknown" : ` ${bound(job.clock_bound_ns)}`;
  return `${pair(job.arrival_skew_p50_ns, job.arrival_skew_p99_ns)}${error}`;
}

function newestStep(job: Job): string {
  if (job.arrival_skew_ns === null) return "—";
  const error = job.arrival_skew_error_ns === null ? ", error unknown" : ` ${bound(job.arrival_skew_error_ns)}`;
  const last = job.last_rank === null ? "last: inconclusive" : `last: rank ${job.last_rank}`;
  return `${duration(job.arrival_skew_ns)}${error}, ${last}`;
}

/** How arrivals were compared, and whether the error is small enough to name the rank that was late. */
function methodText(job: Job): string {
  if (job.method === null) return "—";
  const within = job.clock_bound_ns === null ? "" : `, error ${bound(job.clock_bound_ns)}`;
  const verdict = job.trusted ? "small enough to name the late rank" : job.arrival_skew_p50_ns === null ? "" : "too large to name the late rank: most differences are smaller";
  return `${METHODS[job.method] ?? job.method}${within}${verdict && `; ${verdict}`}`;
}

/** The alignment now, the two nodes that may differ most, and when it expires without new states. */
function alignmentText(job: Job, sinceReceivedMs: number): string {
  const nowNs = boundAt({ bound_ns: job.alignment_ns, growth_ppb: job.alignment_growth_ppb ?? 0 }, sinceReceivedMs * 1e6);
  if (nowNs === null) return `unknown: ${job.alignment_reason}`;
  const leftMs = job.alignment_holds_for_ns == null ? null : job.alignment_holds_for_ns / 1e6 - sinceReceivedMs;
  if (leftMs !== null && leftMs <= 0) return "expired: no new states for too long";
  const nodes = job.alignment_pair ? ` (${job.alignment_pair.join(" – ")})` : "";
  return `${duration(nowNs, roundUp)}${nodes}${aboveText(nowNs, state.jobLimitNs)}${leftMs === null ? "" : `, expires in ${remainingText(leftMs)} without new states`}`;
}

function stalenessText(job: Job): string {
  if (job.staleness_max === null) return "—";
  return `median ${job.staleness_p50 ?? "—"} updates behind, at most ${job.staleness_max}`;
}

function delaysText(delays: Job["delays"]): string {
  if (delays.length === 0) return "—";
  const shown = delays.slice(0, MAX_DELAYS).map((each) => `${each.from_rank} → ${each.to_rank} ${duration(each.p50_ns)} ${bound(each.error_ns)}`);
  return shown.join(", ") + (delays.length > MAX_DELAYS ? `, ${delays.length - MAX_DELAYS} more pairs` : "");
}

function planText({ mode, slack_ns: slack, guard_ns: guard, from_step: from, reason }: Plan): string {
  const how = mode === "timed" ? `timed from step ${stepText(from)}, slack ${duration(slack)}, guard ${duration(guard)}` : "plain";
  return reason ? `${how} (${reason})` : how;
}

function phaseText({ plan: { phase: found }, link }: Job): string {
  if (!found) return "—";
  const onLink = link ? ` on ${link}` : "";
  return `steps start ${duration(found.shift_ns)} into each period of ${duration(found.period_ns)}${onLink}, delayed by at most ${percent(found.hold_share_ppm / 1e6)}`;
}

function groupsText({ plan: { groups: levels }, groups_reason: reason }: Job): string {
  const counts = levels.map((level, outer) => `${new Set(level).size} ${outer ? "larger groups" : "groups"}`).join(", in ");
  return counts && reason ? `${counts} (${reason})` : counts || reason || "—";
}

function marksText(job: Job): string {
  const lost = job.ranks.reduce((sum, rank) => sum + rank.marks_lost, 0);
  const counts = ([["lost", lost], ["duplicate", job.marks_repeated], ["refused: no space", job.marks_refused]] as [string, number][]).filter(([, count]) => count > 0);
  return counts.length ? counts.map(([what, count]) => `${count} ${what}`).join(", ") : "—";
}

function renderStragglers(body: HTMLElement, stragglers: Straggler[]): void {
  (body.parentElement as HTMLElement).hidden = stragglers.length === 0;
  fillTable(body, stragglers.map((each) => [
    `${each.rank} ${each.where}`,
    each.verdict === "straggler" ? { text: `${each.rank} ▲ straggler`, className: "warn" } : { text: `${each.rank} ? inconclusive`, className: "unknown" },
    each.node, each.where,
    number(duration(each.lateness_p50_ns)), number(duration(each.exposed_ns)), number(percent(each.last_share)),
  ]));
}

function renderRanks(body: HTMLElement, job: Job): void {
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
