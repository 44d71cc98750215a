// The view of one grandmaster: its state in a sentence, its error against UTC with what is left of the holdover budget, its satellites,
// its time error and its clients over time; below it all grandmasters.

import { fetchJson } from "../api.ts";
import { CurveChart, TimeChart } from "../chart.ts";
import { byId, fillTable, h, put, putChildren } from "../dom.ts";
import { NOT_LOADED } from "../liveness.ts";
import { HeatMap, NOTHING, columnAt } from "../heat.ts";
import { alarmClass, bound, boundAt, count, duration, durationText, grandmasterNow, roundUp, signed, type Entry, type GrandmasterNow } from "../model.ts";
import { at, atZone, place } from "../place.ts";
import { state } from "../state.ts";
import { drawSky } from "../sky.ts";
import { timeOfDay, zoneName } from "../time.ts";
import { RangeRequest, seriesPath, spanQuery, tableOf, type SeriesAnswer } from "../series.ts";
import { Track, aligned, held, joined, originText, withGaps, type Table } from "../track.ts";
import type { Grandmaster, List, TimeErrorStep } from "../types.ts";
import { StabilitySection } from "./stability.ts";
import { Grandmasters, STATE_SIGNS, gnss, leftText, snmpErrorOf, spaced } from "./grandmaster.ts";

const SECTIONS = ["gm-headline", "gm-holdover-section", "gm-cn0-section", "gm-followers-section", "gm-stability"];
const ERRORS_EVERY_MS = 60_000;
const CN0_LOWEST = 15, CN0_HIGHEST = 55;
const MOST_READINGS = 400;
const NOT_READ = "not polled, or no answer";
const MOST_SPANS = 8;
const CHANNELS = ["series-1", "series-2", "series-3", "series-5", "series-6", "series-7"];

interface SkyAnswer {
  begin_ms: number;
  step_ms: number;
  steps: number;
  satellites: number[];
  cn0_db_hz: (number | null)[][];
}

interface StatesAnswer {
  spans: { begin_ms: number; end_ms: number; clock_state: string | null }[];
}

interface Reading {
  atMs: number;
  cn0: Map<number, number | null>;
  state: string;
}

/** What the page collects of one grandmaster while it is open. */
class Collected {
  readonly readings: Reading[] = [];
  readonly clients = new Track(1, 150_000);

  add(grandmaster: Grandmaster): void {
    const atMs = (grandmaster.published_realtime_ns - (grandmaster.age_ns ?? 0)) / 1e6;
    const last = this.readings.at(-1);
    if (last !== undefined && atMs < last.atMs + 900) return;
    const cn0 = new Map((grandmaster.reachable ? (grandmaster.satellites ?? []) : []).map((each) => [each.number, each.cn0_db_hz]));
    this.readings.push({ atMs, cn0, state: grandmaster.reachable ? (grandmaster.clock_state ?? "not read") : "unreachable" });
    if (this.readings.length > MOST_READINGS) this.readings.shift();
    const ports = grandmaster.reachable ? (grandmaster.ports ?? []).map(({ clients }) => clients).filter((clients) => clients !== null) : [];
    this.clients.add(atMs, [ports.length === 0 ? null : ports.reduce((sum, clients) => sum + clients, 0)]);
  }
}

export class GrandmasterView {
  private readonly cards = new Grandmasters(byId("grandmasters"), byId<HTMLTemplateElement>("grandmaster-template"));
  private readonly collected = new Map<string, Collected>();
  private shown: Grandmaster | null = null;
  private its: GrandmasterNow | null = null;
  private satellites: number[] = [];
  private times: number[] = [];
  private cells: (number | null)[][] = [];
  private stored: Reading[] = [];
  private readonly sky = new RangeRequest<SkyAnswer>((name) => `api/v1/grandmasters/${encodeURIComponent(name)}/sky?${spanQuery({ points: "300" })}`, (answer) => { this.storedSky = answer; });
  private storedSky: SkyAnswer | null = null;
  private readonly states = new RangeRequest<StatesAnswer>(
    (name) => `api/v1/grandmasters/${encodeURIComponent(name)}/states?${spanQuery({})}`,
    (answer) => { this.stored = (answer?.spans ?? []).map((span) => ({ atMs: span.begin_ms, cn0: new Map(), state: span.clock_state ?? NOT_READ })); },
  );
  private storedClients: Table = { times: [], values: [[]] };
  private readonly clients = new RangeRequest<SeriesAnswer>(
    (name) => `${seriesPath("grandmaster", name)}&quantities=ptp_clients`,
    (answer) => { this.storedClients = tableOf(answer, [["ptp_clients", "median"]]); },
  );
  private requested = "";
  private requestedAt = -Infinity;
  private errors: TimeChart | null = null;
  private readonly stability = new StabilitySection(byId("gm-stability"), "G.8272 PRTC-A");
  private readonly curve = new CurveChart(byId("gm-holdover"), {
    name: "error against UTC while it holds over", height: 280, log: false,
    lines: [{ label: "bound against UTC", colour: "warn", width: 2 }],
    xText: (hours) => `${+hours.toFixed(2)} h`, yText: (ns) => duration(ns, roundUp), marks: () => this.curveMarks(),
  });
  private readonly cn0 = new HeatMap(byId("gm-cn0"), {
    name: "C/N0 of each satellite over time", height: 260, stops: ["cn0-1", "cn0-2", "cn0-3", "cn0-4"],
    scale: { name: "cn0", from: "15", to: "55 dB-Hz", others: ["not tracked"] }, cellText: (row, column) => this.cellText(row, column),
    cursor: () => columnAt(this.times, place.cursorMs),
  });
  private readonly followers = new TimeChart(byId("gm-followers"), {
    name: "PTP clients over time", height: 220, zero: true, text: (clients) => (Number.isInteger(clients) ? String(clients) : ""), lines: [{ label: "clients", colour: "series-1" }],
  });

  received(grandmaster: Grandmaster): void {
    const collected = this.collected.get(grandmaster.name) ?? new Collected();
    this.collected.set(grandmaster.name, collected);
    collected.add(grandmaster);
  }

  render(now: number): void {
    const known = state.received.grandmaster;
    const entry = known.get(place.route.name ?? worstOf(known, now));
    for (const id of SECTIONS) byId(id).hidden = !entry;
    byId("no-grandmasters").hidden = Boolean(entry);
    put(byId("no-grandmasters"), absentText(known.size));
    if (entry) this.renderOne(entry, now);
    else this.forgetErrors();
    this.cards.render(known, now);
    renderAlarms();
  }

  private renderOne({ data, receivedAt }: Entry<Grandmaster>, now: number): void {
    const its = grandmasterNow(data, receivedAt, now);
    if (this.shown?.name !== data.name) {
      this.forgetErrors();
      this.storedSky = null;
      this.stored = [];
      this.storedClients = { times: [], values: [[]] };
    }
    this.shown = data;
    this.its = its;
    place.asOfNs = data.published_realtime_ns;
    renderHeadline(data, its);
    const collected = this.collected.get(data.name) ?? new Collected();
    putChildren(byId("gm-strip"), strip(this.stored.length > 0 ? this.stored : collected.readings, place.limits(Date.now())));
    this.drawHoldover(data, its);
    this.drawCn0(collected);
    const clients = joined(this.storedClients, collected.clients);
    byId("gm-followers-section").hidden = clients.values[0]?.every((count) => count === null) ?? true;
    put(byId("gm-followers-note"), `on all ports; ${originText(this.storedClients.times.length > 0, collected.clients.times, place.fixedLimits, (ms) => at(ms * 1e6))}`);
    this.followers.set(clients);
    this.clients.tick(data.name, now);
    this.sky.tick(data.name, now);
    this.states.tick(data.name, now);
    this.loadErrors(data, now);
    this.errors?.redraw();
    this.stability.render({ node: null, name: data.name, sources: [data.name], isGrandmaster: true }, now);
  }

  /** The bound from the poll on: to the end of the holdover budget, else for an hour. */
  private drawHoldover(grandmaster: Grandmaster, its: GrandmasterNow): void {
    const isKnown = grandmaster.utc !== null && grandmaster.utc.bound_ns !== null && its.ageNs !== null;
    put(byId("gm-holdover-note"), isKnown ? (its.leftNs === 0 ? "no budget left" : leftText(grandmaster, its) || "hours from now") : grandmaster.utc?.reason || "no bound");
    byId("gm-holdover").hidden = !isKnown;
    if (!isKnown) return;
    const endNs = Math.max(60e9, its.leftNs ?? 3_600e9);
    const steps = Array.from({ length: 61 }, (_, step) => (step / 60) * endNs * (its.leftNs === null ? 1 : 1.15));
    const beforeNs = its.leftNs === null ? 0 : Math.min(its.inStateNs ?? 0, endNs);
    const xs = [-beforeNs, ...steps].filter((ns, index, all) => index === 0 || ns !== all[index - 1]);
    this.curve.set(xs.map((ns) => ns / 3_600e9), [xs.map((ns) => boundAt(grandmaster.utc, Math.max(0, (its.ageNs ?? 0) + ns)))]);
  }

  private curveMarks(): { x: number; text: string }[] {
    const leftNs = this.its?.leftNs ?? null;
    const end = leftNs === null ? [] : [{ x: leftNs / 3_600e9, text: `ends at ${timeOfDay(Date.now() + leftNs / 1e6, place.zone).slice(0, 5)} ${zoneName(place.zone)}` }];
    return [{ x: 0, text: "now" }, ...end];
  }

  /** From the store; without one, what the page collected. */
  private drawCn0({ readings }: Collected): void {
    const stored = this.storedSky;
    const hasStored = stored !== null && stored.satellites.length > 0;
    this.satellites = hasStored ? stored.satellites : [...new Set(readings.flatMap(({ cn0 }) => [...cn0.keys()]))].sort((a, b) => a - b);
    this.times = hasStored ? Array.from({ length: stored.steps }, (_, step) => stored.begin_ms + step * stored.step_ms) : readings.map(({ atMs }) => atMs);
    this.cells = hasStored ? held(stored.cn0_db_hz) : this.satellites.map((satellite) => readings.map(({ cn0 }) => cn0.get(satellite) ?? null));
    byId("gm-cn0-section").hidden = this.satellites.length === 0;
    const sky = document.getElementById("gm-sky") as unknown as SVGSVGElement;
    drawSky(sky, (this.shown?.reachable && this.shown.satellites) || []);
    put(byId("gm-sky-note"), sky.hasAttribute("hidden") ? "" : "sky: now, north is up; filled: healthy");
    const drawn = JSON.stringify([this.shown?.name, this.times.length, this.times.at(-1), place.zone, place.cursorMs]);
    if (this.satellites.length === 0 || byId("gm-cn0").dataset.drawn === drawn) return;
    byId("gm-cn0").dataset.drawn = drawn;
    const share = (value: number | null): number => (value === null ? NOTHING : Math.min(1, Math.max(0, (value - CN0_LOWEST) / (CN0_HIGHEST - CN0_LOWEST))));
    this.cn0.set({ rows: this.satellites.map((satellite) => `sat ${satellite}`), columns: this.times.map((atMs) => timeOfDay(atMs, place.zone)), cells: Float32Array.from(this.cells.flat(), share) });
  }

  private cellText(row: number, column: number): string {
    const value = this.cells[row]?.[column];
    if (value === undefined) return "";
    return `satellite ${this.satellites[row]}, ${timeOfDay(this.times[column] ?? 0, place.zone)}: ${value === null ? "not tracked, or C/N0 not provided" : `${value} dB-Hz`}`;
  }

  /** An answer that comes later is dropped. */
  private forgetErrors(): void {
    this.requested = "";
    byId("gm-error-section").hidden = true;
  }

  /** Requests the time errors of the address's range; a daemon without a store has none. */
  private loadErrors(grandmaster: Grandmaster, now: number): void {
    const request = JSON.stringify([grandmaster.name, place.range]);
    if (request === this.requested && (document.hidden || now - this.requestedAt < ERRORS_EVERY_MS)) return;
    Object.assign(this, { requested: request, requestedAt: now });
    void this.requestErrors(grandmaster, request);
  }

  private async requestErrors(grandmaster: Grandmaster, request: string): Promise<void> {
    const [from, to] = place.limits(Date.now());
    const query = new URLSearchParams({ since: new Date(from).toISOString(), until: new Date(to).toISOString() });
    const body = await fetchJson<List<TimeErrorStep>>(`api/v1/grandmasters/${encodeURIComponent(grandmaster.name)}/time-errors?${query}`);
    if (request !== this.requested) return;
    const steps = (body?.items ?? []).filter(({ metric }) => metric === "te");
    const channels = [...new Set(steps.map(({ channel }) => channel))].slice(0, CHANNELS.length);
    byId("gm-error-section").hidden = channels.length === 0;
    put(byId("gm-error-note"), channels.map((channel) => extremes(channel, steps)).join("; "));
    this.errors = errorChart(grandmaster, channels, steps);
  }
}

const extremes = (channel: string, steps: TimeErrorStep[]): string => {
  const its = steps.filter((step) => step.channel === channel);
  return `${channel}: ${signed(Math.min(...its.map((step) => step.lowest_ns)))} to ${signed(Math.max(...its.map((step) => step.highest_ns)))}`;
};

/** A chart of its own for each set of channels; the mask is the channel's alarm threshold. */
function errorChart(grandmaster: Grandmaster, channels: string[], steps: TimeErrorStep[]): TimeChart {
  byId("gm-errors").replaceChildren();
  const thresholds = [...new Set((grandmaster.time_errors ?? []).filter(({ metric, channel }) => metric === "te" && channels.includes(channel)).map(({ alarm_threshold_ns: ns }) => ns))].filter((ns) => ns !== null);
  const chart = new TimeChart(byId("gm-errors"), {
    name: "time error of each channel", height: 220,
    limits: () => thresholds.flatMap((ns) => [{ value: ns, text: `alarm at ${duration(ns)}` }, { value: -ns, text: "" }]),
    lines: channels.flatMap((channel, index) => [
      { label: `${channel}, highest`, colour: CHANNELS[index] as string, fillTo: 2 * index + 1, fill: "band" }, { label: `${channel}, lowest`, colour: CHANNELS[index] as string },
    ]),
  });
  chart.set(aligned(channels.flatMap((channel) => {
    const its = steps.filter((step) => step.channel === channel);
    const times = its.map(({ realtime_ns: ns }) => ns / 1e6);
    return [withGaps(times, its.map((step) => step.highest_ns)), withGaps(times, its.map((step) => step.lowest_ns))];
  })));
  return chart;
}

function absentText(known: number): string {
  const { name } = place.route;
  if (name !== null && !state.isLive) return NOT_LOADED;
  return known === 0 || name === null ? "This daemon polls no grandmaster." : `This daemon polls no grandmaster named ${name}.`;
}

/** The one that needs attention first. */
function worstOf(known: Map<string, Entry<Grandmaster>>, now: number): string {
  const sorted = [...known].toSorted(([a, x], [b, y]) => Number(grandmasterNow(x.data, x.receivedAt, now).isHealthy) - Number(grandmasterNow(y.data, y.receivedAt, now).isHealthy) || (a < b ? -1 : 1));
  return sorted[0]?.[0] ?? "";
}

function renderHeadline(grandmaster: Grandmaster, its: GrandmasterNow): void {
  const clock = grandmaster.reachable ? spaced(grandmaster.clock_state ?? "state not read") : "unreachable";
  const since = its.inStateNs === null || !grandmaster.reachable ? "" : ` since ${atZone(grandmaster.clock_state_since_realtime_ns ?? 0)}`;
  const budget = its.leftNs === null ? "" : its.leftNs === 0 ? "; its holdover budget is exhausted" : `; its holdover budget lasts another ${durationText(its.leftNs / 1e6)}`;
  byId("gm-headline").dataset.verdict = its.isHealthy ? "within" : grandmaster.reachable && grandmaster.clock_state?.startsWith("holdover") ? "warn" : "exceeded";
  put(byId("gm-text"), `${grandmaster.name}: ${clock}${since}${budget}`);
  const alarms = grandmaster.alarms === null ? "alarms not provided" : grandmaster.alarms.length === 0 ? "no alarm" : grandmaster.alarms.map(({ severity, text }) => `${severity}: ${text}`).join(", ");
  const utc = its.utcNs === null ? `no bound against UTC: ${grandmaster.utc?.reason || "not computed"}` : `${bound(its.utcNs)} against UTC`;
  const antenna = grandmaster.antenna === null || grandmaster.gnss_state === "antenna_fault" ? "" : `antenna ${grandmaster.antenna}`;
  const error = grandmaster.reachable ? (snmpErrorOf(grandmaster) ?? "") : `${grandmaster.reason ?? "no reply"}; the values below are the last known`;
  put(byId("gm-why"), [error, utc, followersText(grandmaster.name), gnss(grandmaster), antenna, alarms].filter(Boolean).join(" · "));
}

/** How many nodes of a fleet it concerns, by what the nodes report. */
function followersText(name: string): string {
  const followers = state.isFleet ? state.overview?.data.grandmasters.find((each) => each.name === name)?.followers : undefined;
  return followers === undefined ? "" : followers === 1 ? "1 node follows it" : `${count(followers)} nodes follow it`;
}

/** The states over time as a strip, the oldest first: each span is about as wide as it lasts. Before the first reading nothing is known. */
function strip(readings: Reading[], [fromMs, toMs]: [number, number]): HTMLElement[] {
  const first = Math.max(0, readings.findIndex(({ state: name }) => name !== NOT_READ));
  const spans: { state: string; fromMs: number }[] = [];
  for (const { atMs, state: name } of readings.slice(first)) if (spans.at(-1)?.state !== name) spans.push({ state: name, fromMs: atMs });
  return spans.slice(-MOST_SPANS).map(({ state: name, fromMs: beganMs }, at, shown) => {
    const [sign, className] = STATE_SIGNS[name] ?? ["✕", "bad"];
    const item = h("span", { class: className }, `${sign} ${spaced(name)} from ${timeOfDay(beganMs, place.zone)}`);
    item.style.flexGrow = String(Math.max(0, (shown[at + 1]?.fromMs ?? toMs) - Math.max(fromMs, beganMs)));
    return item;
  });
}

function renderAlarms(): void {
  const { alarms } = state.received;
  byId("alarm-events-block").hidden = alarms.length === 0;
  fillTable(byId("alarm-events"), alarms.map((event) => [
    `${event.node} ${event.incarnation} ${event.sequence}`,
    at(event.published_realtime_ns), event.name,
    { text: event.severity === event.action ? event.action : `${event.action} · ${event.severity}`, className: event.action === "clear" ? "good" : alarmClass(event.severity) },
    event.lost ? `${event.text} (${event.lost} earlier notifications lost)` : event.text,
  ]));
}
