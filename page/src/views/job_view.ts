// The view of one job: its verdict in a sentence, the lateness of its ranks step by step, where the time goes, and its clocks' alignment.

import { fetchJson } from "../api.ts";
import { TimeChart } from "../chart.ts";
import { CategoryBars } from "../bars.ts";
import { byId, h, put } from "../dom.ts";
import { HeatMap, columnAt } from "../heat.ts";
import { NOT_LOADED } from "../liveness.ts";
import { aboveText, boundAt, duration, percent, roundUp, stepText, withMicro, type Entry } from "../model.ts";
import { latenessCells, latenessOf, latenessText, stepParts, type Lateness, type LatenessAnswer } from "../lateness.ts";
import { atZone, place } from "../place.ts";
import { state } from "../state.ts";
import { RangeRequest, seriesPath, tableOf, type SeriesAnswer } from "../series.ts";
import { Track, joined, type Table } from "../track.ts";
import type { Job, Window } from "../types.ts";
import { renderJobs } from "./job.ts";

const SECTIONS = ["job-headline", "job-alignment-section"];
const WINDOW_EVERY_MS = 5_000;
const MOST_STEPS = 500;
/** Of so many steps, and of about so many marks, the parts are computed here. */
const PART_STEPS = 200;
const MOST_MARKS = 10_000;

export class JobView {
  private readonly heat = new HeatMap(byId("lateness"), {
    name: "lateness of each rank in each step", height: 360, stops: ["late-1", "late-2", "late-3", "late-4"],
    scale: { name: "late", from: "100 µs", to: "100 ms", others: ["within the clocks' error", "early"] }, cellText: (row, column) => this.cellText(row, column),
    cursor: () => columnAt(this.lateness?.beginsMs ?? [], place.cursorMs),
  });
  private readonly bars = new CategoryBars(byId("parts"), {
    name: "where the time of each step goes", height: 220, text: (ns) => duration(ns),
    parts: [
      { label: "computing", colour: "part-1" }, { label: "computing, transfer hidden", colour: "part-2" }, { label: "transfer, exposed", colour: "series-1" },
      { label: "waiting for a certain rank", colour: "bad" }, { label: "waiting, others", colour: "series-3" },
    ],
  });
  private readonly chart = new TimeChart(byId("job-alignment"), {
    name: "alignment of the job's clocks over time", height: 200, log: true, flags: () => this.flags, limits: () => this.limits(),
    lines: [{ label: "alignment", colour: "series-1" }, { label: "arrival skew, median", colour: "series-3" }],
  });
  private readonly tracks = new Map<string, Track>();
  private stored: Table = { times: [], values: [[], []] };
  private readonly series = new RangeRequest<SeriesAnswer>((id) => seriesPath("job", id), (answer) => {
    this.stored = tableOf(answer, [["alignment_ns", "maximum"], ["arrival_skew_p50_ns", "median"]]);
  });
  private lateness: Lateness | null = null;
  private shownJob = "";
  private requested = "";
  private requestedAt = -Infinity;
  private flags: { atMs: number; text: string }[] = [];
  private readonly plans = new Map<string, string>();

  received(job: Job): void {
    const track = this.tracks.get(job.job_id) ?? new Track(2, 30_000);
    this.tracks.set(job.job_id, track);
    track.add(job.published_realtime_ns / 1e6, [job.alignment_ns, job.arrival_skew_p50_ns]);
    const plan = `${job.plan.mode}${job.plan.policy ? `, ${job.plan.policy}` : ""}`;
    const before = this.plans.get(job.job_id);
    this.plans.set(job.job_id, plan);
    if (before !== undefined && before !== plan) this.flags = [...this.flags, { atMs: job.published_realtime_ns / 1e6, text: plan }].slice(-8);
  }

  render(now: number): void {
    const jobs = state.received.job;
    const selected = place.route.name ?? [...jobs.keys()][0] ?? null;
    const entry = selected === null ? undefined : jobs.get(selected);
    for (const id of SECTIONS) byId(id).hidden = !entry;
    renderJobs(jobs, selected, now);
    if (!entry) {
      put(byId("no-jobs"), absentText(jobs.size));
      byId("no-jobs").hidden = false;
      for (const id of ["lateness-section", "parts-section"]) byId(id).hidden = true;
      return;
    }
    place.asOfNs = entry.data.published_realtime_ns;
    renderHeadline(entry, now);
    this.series.tick(entry.data.job_id, now);
    this.chart.set(joined(this.stored, this.tracks.get(entry.data.job_id) ?? { times: [], values: [[], []] }));
    this.load(entry.data.job_id, now);
  }

  private limits(): { value: number; text: string }[] {
    const ns = state.jobLimitNs;
    return ns === null ? [] : [{ value: ns, text: `limit ${duration(ns)}` }];
  }

  private load(id: string, now: number): void {
    const request = JSON.stringify([id, place.range]);
    if (id !== this.shownJob) for (const section of ["lateness-section", "parts-section"]) byId(section).hidden = true;
    if (request === this.requested && (document.hidden || now - this.requestedAt < WINDOW_EVERY_MS)) return;
    Object.assign(this, { shownJob: id, requested: request, requestedAt: now });
    void this.request(id, request);
  }

  /** The lateness of the newest steps that are in the time range, then the marks of as many of them as a browser reads quickly. */
  private async request(id: string, request: string): Promise<void> {
    const answer = await fetchJson<LatenessAnswer>(`api/v1/jobs/${encodeURIComponent(id)}/lateness?steps=${MOST_STEPS}`);
    if (answer === null || request !== this.requested) return;
    const lateness = latenessOf(answer, limitsOf(answer));
    this.showLateness(lateness, answer);
    const shown = lateness.steps.slice(-Math.min(PART_STEPS, Math.ceil(MOST_MARKS / Math.max(1, answer.ranks.length))));
    const last = shown.at(-1) ?? -1;
    const window: Pick<Window, "syncs" | "steps"> = { syncs: [], steps: [] };
    for (let from: number | null = shown[0] ?? null; from !== null && from <= last;) {
      const page: Window | null = await fetchJson<Window>(`api/v1/jobs/${encodeURIComponent(id)}/window?limit=${PART_STEPS}&from_step=${from}`);
      if (page === null || request !== this.requested) return;
      window.syncs.push(...page.syncs.filter(({ step }) => step <= last));
      window.steps?.push(...(page.steps ?? []).filter(({ step }) => step <= last));
      from = page.next_step;
    }
    this.showParts(window);
  }

  private showLateness(lateness: Lateness, answer: LatenessAnswer): void {
    this.lateness = lateness;
    byId("lateness-section").hidden = answer.steps.length === 0;
    byId("lateness").hidden = lateness.steps.length === 0;
    put(byId("lateness-note"), latenessNote(lateness, answer));
    if (lateness.steps.length === 0) return;
    this.heat.set({ rows: lateness.ranks.map((rank) => `rank ${rank}`), columns: lateness.steps.map(stepText), cells: latenessCells(lateness) });
  }

  private showParts(window: Pick<Window, "syncs" | "steps">): void {
    byId("parts-section").hidden = window.syncs.length === 0;
    this.bars.set(stepParts(window).map(({ step, computeNs, hiddenNs, exposedNs, waitNs, lastRank }) => ({
      label: stepText(step), note: lastRank === null ? "" : `waiting for rank ${lastRank}`,
      values: [computeNs, hiddenNs, exposedNs, lastRank === null ? 0 : waitNs, lastRank === null ? waitNs : 0],
    })));
  }

  private cellText(row: number, column: number): string {
    if (this.lateness === null) return "";
    const { steps, ranks, nodes, lateNs, errorNs } = this.lateness;
    const late = lateNs[row * steps.length + column] ?? NaN;
    const error = errorNs[column] ?? NaN;
    const where = `rank ${ranks[row]} on ${nodes[row] ?? "an unknown node"}, step ${stepText(steps[column] ?? null)}`;
    return `${where}: ${latenessText(late, error)}`;
  }
}

function absentText(jobs: number): string {
  const { name } = place.route;
  if (name !== null && !state.isLive) return NOT_LOADED;
  return jobs === 0 || name === null ? "No job reports." : `This daemon aggregates no job with the id ${name}.`;
}

/** By the daemon's clock: the browser's may be minutes off. A live range has no end, since a rank's clock may be a little ahead. */
function limitsOf({ as_of_realtime_ns: asOfNs }: LatenessAnswer): [fromMs: number, toMs: number] {
  const [fromMs, toMs] = place.limits(asOfNs / 1e6);
  return [fromMs, place.range.kind === "live" ? Infinity : toMs];
}

function latenessNote({ steps, ranks }: Lateness, answer: LatenessAnswer): string {
  if (steps.length > 0) return `${ranks.length} ranks, ${steps.length} steps of this time range; grey where a difference is within the clocks' error or that error is not known`;
  const begins = answer.begins_ms.filter((ms) => ms !== null);
  const kept = `the daemon keeps the newest ${answer.steps.length} steps`;
  if (begins.length === 0) return `When the steps began is not known, so none can be shown for a time range; ${kept}.`;
  return `No step that the daemon keeps is in this time range: ${kept}, from ${atZone(Math.min(...begins) * 1e6)} to ${atZone(Math.max(...begins) * 1e6)}.`;
}

function renderHeadline({ data: job, receivedAt }: Entry<Job>, now: number): void {
  const straggler = job.stragglers.find(({ rank }) => rank === job.straggler_rank);
  const alignmentNs = boundAt({ bound_ns: job.alignment_ns, growth_ppb: job.alignment_growth_ppb ?? 0 }, (now - receivedAt) * 1e6);
  const above = aboveText(alignmentNs, state.jobLimitNs);
  byId("job-headline").dataset.verdict = straggler || above ? "exceeded" : job.trusted ? "within" : "unknown";
  const waiting = job.sync_overhead === null ? "synchronization's cost is not known" : `${percent(job.sync_overhead)} of the time is synchronization`;
  const clocks = alignmentNs === null ? `the clocks' alignment is unknown: ${job.alignment_reason}` : `the clocks agree within ${duration(alignmentNs, roundUp)}${above}`;
  put(byId("job-text"), `${job.job}: ${above && `${clocks}; `}${waiting}${straggler ? `; rank ${straggler.rank} (${straggler.node}) is late` : "; no rank is known to be late"}`);
  put(byId("job-why"), [withMicro(job.verdict), above ? "" : clocks, barrierNeed(job), lostMarks(job)].filter(Boolean).join(" · "));
  const audit = `timesyncd audit --url ${location.origin} --job ${job.job_id}`;
  if (byId("job-link").dataset.drawn === job.job_id) return;
  byId("job-link").dataset.drawn = job.job_id;
  byId("job-link").replaceChildren(h("span", { class: "quiet" }, "audit: "), h("code", {}, audit));
}

const barrierNeed = (job: Job): string => (job.plan.mode === "timed" ? `the timed barrier allows ${duration(job.plan.guard_ns)}` : "");

function lostMarks(job: Job): string {
  const lost = job.ranks.reduce((sum, rank) => sum + rank.marks_lost, 0);
  return lost === 0 ? "" : `${lost} marks lost: the daemon of their node read too slowly or was down; restart it, or lower its load`;
}
