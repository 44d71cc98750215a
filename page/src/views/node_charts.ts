// The charts of one node: the offset inside its bound, the stacked terms, the forecast, and the history of path delay and frequency.

import { CurveChart, TimeChart, type Line } from "../chart.ts";
import { byId, h, put } from "../dom.ts";
import { boundAt, duration, nodeNow, roundUp, statusAt } from "../model.ts";
import { at, place } from "../place.ts";
import { state } from "../state.ts";
import { zoneName } from "../time.ts";
import { RangeRequest, seriesPath, spanQuery, tableOf, type SeriesAnswer } from "../series.ts";
import { flagsOf, type Flag } from "../lanes.ts";
import { Track, joined, originText, type Table } from "../track.ts";
import type { Bound, CloudEvent, List, NodeState } from "../types.ts";
import { measuredClock, measuringSource } from "./node.ts";

/** States arrive each second or two. */
const GAP_MS = 7_000;
const STACK = ["path_delay", "step_tolerance", "path_memory", "offset", "asymmetry_uncertainty", "granularity", "other", "growth"];
const STACK_COLOURS = ["series-1", "series-2", "series-3", "series-4", "series-5", "series-6", "quiet", "series-7"];
const HISTORY: [quantity: string, name: string][] = [["path_delay_ns", "path delay"], ["frequency_ppb", "frequency"]];

const MOST_FLAGS = 8;

const noStack = (): Table => ({ times: [], values: STACK.map(() => []) });

export class NodeCharts {
  private node: string | null = null;
  private readonly band = new TimeChart(byId("band"), {
    name: "offset inside its bound", height: 280, flags: () => this.flags, limits: () => this.limits(),
    lines: [
      { label: "bound", colour: "series-1", width: 1, fillTo: 1, fill: "band" },
      { label: "−bound", colour: "series-1", width: 1, isMirrored: true },
      { label: "99.7 %", colour: "series-1", width: 0.5, fillTo: 3, fill: "band" },
      { label: "−99.7 %", colour: "series-1", width: 0.5, isMirrored: true },
      { label: "offset", colour: "ink", width: 1.4 },
    ],
  });
  private readonly stack = new TimeChart(byId("stack"), {
    name: "the terms of the bound, stacked", height: 220, zero: true,
    lines: STACK.map((name, index): Line => ({
      label: name.replaceAll("_", " "), colour: STACK_COLOURS[index] ?? "quiet", width: 1,
      ...(index > 0 ? { fillTo: index - 1, above: index - 1 } : {}), fill: `${STACK_COLOURS[index] ?? "quiet"}-fill`,
    })),
  });
  private readonly curve = new CurveChart(byId("forecast-chart"), {
    name: "the bound without new samples", height: 220, log: true,
    lines: [{ label: "bound", colour: "warn", width: 2 }, { label: "99.7 %", colour: "series-1", dash: [4, 3] }],
    xText: (seconds) => (seconds >= 3600 ? `${+(seconds / 3600).toPrecision(2)} h` : seconds >= 60 ? `${+(seconds / 60).toPrecision(2)} min` : `${+seconds.toPrecision(2)} s`),
    yText: (ns) => duration(ns, roundUp), marks: () => this.limits().map(({ value, text }) => ({ y: value, text })),
  });
  private bandTrack = new Track(5, GAP_MS);
  private stackTrack = new Track(STACK.length, GAP_MS);
  private stored: Table = { times: [], values: [[], [], [], [], []] };
  private hasHistory = false;
  private readonly charts = new Map<string, { chart: TimeChart; figure: HTMLElement }>();
  private flags: Flag[] = [];
  /** The node and the grandmaster that it follows: of both the events are flags. */
  private subjects: string[] = [];
  private storedStack: Table = noStack();
  private readonly series = new RangeRequest<SeriesAnswer>((node) => seriesPath("node", node), (answer) => this.received(answer));
  private readonly events = new RangeRequest<List<CloudEvent>>(
    (node) => `api/v1/events?${spanQuery({ node, limit: "50" })}`,
    (answer) => { this.flags = (answer?.items ?? []).flatMap((event) => flagsOf(event, this.subjects)).slice(0, MOST_FLAGS); },
  );

  /** Adds a received state to the charts. */
  add(node: NodeState, now: number): void {
    if (node.node !== this.node) this.reset(node.node);
    const its = nodeNow(node, now, now);
    const source = measuringSource(node);
    const atMs = node.published_realtime_ns / 1e6;
    const of = (ns: number | null): number | null => (ns === null ? null : -ns);
    this.bandTrack.add(atMs, [its.mainNs, of(its.mainNs), its.mainStatNs, of(its.mainStatNs), source?.offset_ns ?? null]);
    this.stackTrack.add(atMs, stacked(node, its.parentNs));
  }

  private reset(node: string): void {
    this.node = node;
    this.bandTrack = new Track(5, GAP_MS);
    this.stackTrack = new Track(STACK.length, GAP_MS);
    this.stored = { times: [], values: [[], [], [], [], []] };
    this.flags = [];
    this.storedStack = noStack();
    for (const { figure } of this.charts.values()) figure.remove();
    this.charts.clear();
    this.hasHistory = false;
  }

  render(node: NodeState, now: number): void {
    this.subjects = [node.node, node.grandmaster ?? ""];
    this.series.tick(this.node, now);
    this.events.tick(this.node, now);
    this.band.set(joined(this.stored, this.bandTrack));
    this.stack.set(joined(this.storedStack, this.stackTrack));
    byId("history").hidden = !this.hasHistory;
    for (const { chart } of this.charts.values()) chart.redraw();
    this.drawForecast(node);
    this.renderNote(node);
  }

  /** What the lines are, and why a chart is empty before the page was opened. */
  private renderNote(node: NodeState): void {
    const isStored = this.stored.times.length > 0;
    const origin = this.series.isLoading ? "the stored past is loading" : originText(isStored, this.bandTrack.times, place.fixedLimits, (ms) => at(ms * 1e6));
    put(byId("band-note"), `offset${measuredClock(measuringSource(node))} (line) and ± bound of the system clock (bands: hard and 99.7 %), ${origin}, ${zoneName(place.zone)}`);
  }

  private limits(): { value: number; text: string }[] {
    const ns = state.overview?.data.headline.limits.node_bound_ns ?? null;
    return ns === null ? [] : [{ value: ns, text: `limit ${duration(ns)}` }];
  }

  private drawForecast(node: NodeState): void {
    const [hard, stat] = node.gm?.reason_code === "no_grandmaster" ? [node.utc, node.utc_stat] : [node.gm, node.gm_stat];
    const endNs = node.void_after_ns - (node.age_ns ?? 0);
    const isKnown = hard !== null && hard.bound_ns !== null && node.age_ns !== null && endNs > 1e9 && statusAt(node.status, node.age_ns, node) !== "UNKNOWN";
    put(byId("forecast-none"), isKnown ? "" : "no bound, so nothing to forecast");
    byId("forecast-chart").hidden = !isKnown;
    if (!isKnown) return;
    const xs = Array.from({ length: 60 }, (_, step) => (endNs / 1e9) ** (step / 59));
    const grown = (bound: Bound | null): (number | null)[] => xs.map((seconds) => boundAt(bound, (node.age_ns ?? 0) + seconds * 1e9));
    this.curve.set(xs, [grown(hard), grown(stat)]);
  }

  private received(answer: SeriesAnswer | null): void {
    if (answer === null) return;
    this.stored = tableOf(answer, [["gm_bound_ns", "maximum"], ["gm_bound_ns", "maximum", -1], ["", "median"], ["", "median"], ["offset_ns", "median"]]);
    this.storedStack = stackOf(answer);
    this.showHistory(answer);
  }

  private showHistory(answer: SeriesAnswer): void {
    const known = HISTORY.filter(([quantity]) => answer.quantities[quantity] !== undefined);
    this.hasHistory = known.length > 0;
    put(byId("history-note"), `${zoneName(place.zone)}, from the daemon's store`);
    for (const [quantity] of known) this.historyChart(quantity).set(tableOf(answer, [[quantity, "maximum"], [quantity, "minimum"], [quantity, "median"]]));
  }

  private historyChart(quantity: string): TimeChart {
    let entry = this.charts.get(quantity);
    if (entry === undefined) {
      const name = HISTORY.find(([each]) => each === quantity)?.[1] ?? quantity;
      const figure = h("figure", {}, h("h3", {}, name));
      byId("history").querySelector(".charts")?.append(figure);
      const chart = new TimeChart(figure, {
        name, height: 180, text: quantity.endsWith("_ppb") ? frequencyText : (ns) => duration(ns),
        lines: [{ label: "highest", colour: "series-1", width: 0.5, fillTo: 1, fill: "band" }, { label: "lowest", colour: "series-1", width: 0.5 }, { label: "median", colour: "series-1" }],
      });
      this.charts.set(quantity, (entry = { chart, figure }));
    }
    return entry.chart;
  }
}

const frequencyText = (ppb: number): string => (Math.abs(ppb) < 1_000 ? `${+ppb.toFixed(Math.abs(ppb) < 10 ? 1 : 0)} ppb` : `${+(ppb / 1e3).toFixed(2)} ppm`).replace("-", "−");

/** The cumulated terms, from the bottom; null: there is no bound. */
export function stacked(node: Pick<NodeState, "terms">, parentNs: number | null): (number | null)[] {
  if (parentNs === null) return STACK.map(() => null);
  const named = STACK.slice(0, -2);
  const other = Object.entries(node.terms).filter(([name]) => !named.includes(name)).reduce((sum, [, ns]) => sum + ns, 0);
  let sum = 0;
  const parts = [...named.map((name) => node.terms[name] ?? 0), other];
  return [...parts.map((ns) => (sum += ns)), Math.max(parentNs, sum)];
}

/** The stored terms, cumulated as the live ones are. The growth is in none of them. */
export function stackOf(answer: SeriesAnswer): Table {
  const names = Object.keys(answer.quantities).filter((name) => name.startsWith("term:"));
  const table = tableOf(answer, names.map((name) => [name, "maximum"]));
  const rows = table.times.map((_, row) => {
    const terms = Object.fromEntries(names.map((name, index) => [name.slice(5), table.values[index]?.[row] ?? null]));
    const isKnown = Object.values(terms).some((ns) => ns !== null);
    const known = Object.fromEntries(Object.entries(terms).map(([name, ns]) => [name, ns ?? 0]));
    return stacked({ terms: known }, isKnown ? 0 : null);
  });
  return { times: table.times, values: STACK.map((_, index) => rows.map((row) => row[index] ?? null)) };
}
