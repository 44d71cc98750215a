// The received states, how they age, and how numbers are written. No DOM here.

import type { Alarm, AlarmEvent, Bound, Finding, FleetSummary, Grandmaster, Hub, Job, NodeState, Status } from "./types.ts";

const NS_PER_MS = 1e6;
const NS_PER_S = 1_000_000_000n;
const UNITS: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

type Ns = number | null | undefined;

/** Rounds up, but ignores what only binary fractions add: 1100 ns is 1.10 µs. */
export const roundUp = (value: number): number => Math.ceil(value - 1e-9);

/** A duration with three significant digits and its unit. Round a bound up, so that it is never understated. */
export function duration(ns: Ns, round: (value: number) => number = Math.round): string {
  if (ns === null || ns === undefined) return "—";
  const size = Math.abs(ns);
  const [unit, name] = UNITS.find(([limit]) => size >= limit) ?? [1, "ns"];
  const digits = unit === 1 ? 0 : size / unit >= 100 ? 0 : size / unit >= 10 ? 1 : 2;
  const text = (round((size / unit) * 10 ** digits) / 10 ** digits).toFixed(digits);
  return `${ns < 0 ? "−" : ""}${text} ${name}`;
}

/** A sentence of the daemon, which writes units in ASCII, with the unit that all else on the page has. */
export const withMicro = (text: string): string => text.replaceAll(/(\d) us\b/g, "$1 µs");

export const signed = (ns: number): string => (ns > 0 ? "+" : "") + duration(ns);
export const bound = (ns: Ns): string => (ns === null || ns === undefined ? "none" : `±${duration(ns, roundUp)}`);

/** A step's key contains its epoch and its number; in epoch 0 the text is the number alone. */
export function stepText(key: number | null): string {
  if (key === null) return "—";
  const epoch = Math.floor(key / 2 ** 32);
  return epoch === 0 ? String(key) : `${epoch}:${key % 2 ** 32}`;
}

export const percent = (ratio: number | null): string => (ratio === null ? "—" : `${(ratio * 100).toFixed(1)} %`);
export const count = (value: number): string => value.toLocaleString("en");

/** An elapsed time, coarse enough that its text does not flicker. */
export function elapsedText(ms: number): string {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
}

/** A duration to the minute, where an hour matters: 3 h 40 min. */
export function durationText(ms: number): string {
  const minutes = Math.max(0, Math.floor(ms / 60000));
  if (minutes < 1) return `${Math.max(0, Math.floor(ms / 1000))} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** The remaining time, to the second while that matters. */
export function remainingText(ms: number): string {
  const s = Math.floor(ms / 1000);
  if (s < 1) return "under 1 s";
  return s >= 60 && s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : durationText(ms);
}

/** The page's status of a daemon without a clock source, for example of a hub alone. */
export const NO_CLOCK = "NO CLOCK";
export type PageStatus = Status | typeof NO_CLOCK;

export const STATUSES: Status[] = ["SYNCHRONIZED", "HOLDOVER", "DISRUPTED", "UNKNOWN"];
export const STATUS_SIGNS: Record<PageStatus, string> = { SYNCHRONIZED: "●", HOLDOVER: "◐", DISRUPTED: "✕", UNKNOWN: "?", [NO_CLOCK]: "–" };
export const STATUS_CLASSES: Record<PageStatus, string> = { SYNCHRONIZED: "good", HOLDOVER: "warn", DISRUPTED: "bad", UNKNOWN: "unknown", [NO_CLOCK]: "quiet" };

/** A status as a table cell: its sign, its name and its class. */
export const statusCell = (status: PageStatus, prefix = ""): { text: string; className: string } => ({
  text: `${STATUS_SIGNS[status]} ${prefix}${status}`, className: STATUS_CLASSES[status],
});

/** What leads to the nodes that a cause left without a bound. No list is by parent or by reason: then it is the status that most of them have. */
export function causeFilter({ kind, name }: { kind: string; name: string }, statuses: Partial<Record<Status, number>>): Record<string, string> {
  if (kind === "place") return { topology: name };
  if (kind === "grandmaster") return { grandmaster: name };
  return { status: (statuses.DISRUPTED ?? 0) > (statuses.UNKNOWN ?? 0) ? "DISRUPTED" : "UNKNOWN" };
}

const ALARM_CLASSES: Record<string, string> = { critical: "bad", major: "bad", minor: "warn" };
export const alarmClass = (severity: Alarm["severity"]): string => ALARM_CLASSES[severity] ?? "unknown";

/** The clock's status at this age, by the table that every reader of a bound applies: a published status ages while no message arrives. */
export function statusAt(published: Status, ageNs: number | null, node: Pick<NodeState, "void_after_ns" | "holdover_after_ns">): Status {
  if (published === "UNKNOWN" || published === "DISRUPTED" || ageNs === null) return published;
  if (ageNs < 0 || ageNs >= node.void_after_ns) return "UNKNOWN";
  return ageNs < node.holdover_after_ns ? "SYNCHRONIZED" : "HOLDOVER";
}

/**
 * A bound at this age in ns, rounded up so that it is never understated; null = unbounded.
 * The twin of `Bound.at` in timesyncd/bound.py; tests/recordings/bound_growth.json holds both.
 * In BigInt, because growth times age exceeds 2^53.
 */
export function boundAt(message: Pick<Bound, "bound_ns" | "growth_ppb"> | null | undefined, ageNs: number | null): number | null {
  if (!message || message.bound_ns === null || ageNs === null) return null;
  const product = BigInt(message.growth_ppb) * BigInt(Math.ceil(ageNs));
  const grown = product / NS_PER_S + (product % NS_PER_S > 0n ? 1n : 0n); // BigInt division truncates towards 0
  return Number(BigInt(message.bound_ns) + grown);
}

const SOURCES_WITHOUT_GRANDMASTER: (string | null)[] = ["utc", "phc", "kernel"];

/** Whether NTP alone keeps this node: then the page shows UTC first. */
export const isUtcOnly = (node: NodeState): boolean =>
  node.gm?.reason_code === "no_grandmaster" && node.sources.every((source) => SOURCES_WITHOUT_GRANDMASTER.includes(source.kind));

const LIMITS: [number, string][] = [[1e3, "1 µs"], [1e4, "10 µs"], [1e5, "100 µs"], [1e6, "1 ms"]];

/** What follows a bound that is above the operator's limit (null: none is configured), else "". */
export const aboveText = (ns: number | null, limitNs: number | null): string =>
  ns === null || limitNs === null || ns <= limitNs ? "" : `, above the limit of ${duration(limitNs)}`;

/** When the bound exceeds the operator's limit (null: none is configured; then the next power of ten) and when it expires, if no new sample or state arrives. */
export function forecast(message: Pick<Bound, "bound_ns" | "growth_ppb"> | null, ageNs: number | null, voidAfterNs: number, limitNs: number | null = null): string {
  const nowNs = boundAt(message, ageNs);
  if (message === null || ageNs === null || nowNs === null || ageNs >= voidAfterNs) return "";
  const end = `expires in ${remainingText((voidAfterNs - ageNs) / NS_PER_MS)}`;
  const [limit, name] = limitNs === null ? (LIMITS.find(([ns]) => ns >= nowNs) ?? []) : [limitNs, `the limit of ${duration(limitNs)}`];
  if (limitNs !== null && nowNs > limitNs) return `above ${name}, ${end}`;
  const inNs = limit && message.growth_ppb ? ((limit - (message.bound_ns ?? 0)) * 1e9) / message.growth_ppb - ageNs : Infinity;
  return inNs < voidAfterNs - ageNs ? `exceeds ${name} in ${remainingText(inNs / NS_PER_MS)}, ${end}` : end;
}

/** The next message arrives within this time. Until then the page shows a bound as it was published, and after that it ages. */
const NEXT_STATE_WITHIN_MS = 2500;

export const hasClock = (node: NodeState): boolean => node.sources.length > 0 || node.age_ns !== null;

export interface NodeNow {
  ageNs: number | null;
  status: Status;
  utcStatus: Status;
  gmNs: number | null;
  utcNs: number | null;
  isUtcOnly: boolean;
  mainStatus: PageStatus;
  mainNs: number | null;
  mainStatNs: number | null;
  isAsPublished: boolean;
  parentNs: number | null;
  parentStatNs: number | null;
  gmStatNs: number | null;
  utcStatNs: number | null;
  forecast: string;
  inStatusMs: number | null;
}

/** A node's age, statuses and bounds now, and how long it has had its status. */
export function nodeNow(node: NodeState, receivedAt: number, now: number, limitNs: number | null = null): NodeNow {
  const silentMs = now - receivedAt;
  const sinceReceivedNs = silentMs < NEXT_STATE_WITHIN_MS ? 0 : silentMs * NS_PER_MS;
  const ageNs = node.age_ns === null ? null : node.age_ns + sinceReceivedNs;
  const status = statusAt(node.status, ageNs, node);
  const utcStatus = statusAt(node.utc_status, ageNs, node);
  const utcOnly = isUtcOnly(node);
  const [mainStatus, published]: [PageStatus, PageStatus] = !hasClock(node) ? [NO_CLOCK, NO_CLOCK] : utcOnly ? [utcStatus, node.utc_status] : [status, node.status];
  const usable = (message: Bound | null, its: Status): number | null => (its === "UNKNOWN" || its === "DISRUPTED" ? null : boundAt(message, ageNs));
  const [gmNs, utcNs] = [usable(node.gm, status), usable(node.utc, utcStatus)];
  const [gmStatNs, utcStatNs] = [usable(node.gm_stat, status), usable(node.utc_stat, utcStatus)];
  const mainNs = utcOnly ? utcNs : gmNs;
  return {
    ageNs, status, utcStatus, gmNs, utcNs, isUtcOnly: utcOnly, mainStatus, mainNs, mainStatNs: utcOnly ? utcStatNs : gmStatNs,
    isAsPublished: mainStatus === published,
    parentNs: usable(node.parent, status), parentStatNs: usable(node.parent_stat, status), gmStatNs, utcStatNs,
    forecast: mainNs === null ? "" : forecast(utcOnly ? node.utc : node.gm, ageNs, node.void_after_ns, limitNs),
    inStatusMs: inStatusMs(node, mainStatus, published, ageNs ?? 0, sinceReceivedNs),
  };
}

function inStatusMs(node: NodeState, status: PageStatus, published: PageStatus, ageNs: number, sinceReceivedNs: number): number | null {
  if (status !== published) return (ageNs - (status === "HOLDOVER" ? node.holdover_after_ns : node.void_after_ns)) / NS_PER_MS;
  if (node.since_realtime_ns === null || status === NO_CLOCK) return null;
  return (node.published_realtime_ns - node.since_realtime_ns + sinceReceivedNs) / NS_PER_MS;
}

/** A grandmaster's own error expires so long after the poll. */
const GRANDMASTER_EXPIRES_NS = 1e12;

export interface GrandmasterNow {
  ageNs: number | null;
  leftNs: number | null;
  inStateNs: number | null;
  utcNs: number | null;
  usedShare: number | null;
  isHealthy: boolean;
}

/** A grandmaster's error against UTC now, what is left of its holdover budget, and how long it has had its clock state. */
export function grandmasterNow(grandmaster: Grandmaster, receivedAt: number, now: number): GrandmasterNow {
  const silentNs = Math.max(0, now - receivedAt) * NS_PER_MS;
  const ageNs = grandmaster.age_ns === null ? null : grandmaster.age_ns + silentNs;
  const leftNs = grandmaster.holdover_left_ns === null || ageNs === null ? null : Math.max(0, grandmaster.holdover_left_ns - ageNs);
  const holds = ageNs !== null && ageNs <= GRANDMASTER_EXPIRES_NS && leftNs !== 0;
  const since = grandmaster.clock_state_since_realtime_ns;
  const inStateNs = since === null ? null : grandmaster.published_realtime_ns - since + silentNs;
  return {
    ageNs, leftNs, inStateNs, utcNs: holds ? boundAt(grandmaster.utc, ageNs) : null,
    usedShare: leftNs === null || inStateNs === null ? null : inStateNs / Math.max(1, inStateNs + leftNs),
    isHealthy: grandmaster.reachable && grandmaster.clock_state === "locked" && !grandmaster.alarms?.length,
  };
}

const ALARM_EVENTS_KEPT = 20;

export interface Entry<T> {
  data: T;
  receivedAt: number;
}

export interface Kinds {
  node: NodeState;
  grandmaster: Grandmaster;
  job: Job;
  hub: Hub;
  finding: Finding;
  alarm: AlarmEvent;
  fleet: FleetSummary;
}
export type Kind = keyof Kinds;
export const KINDS: Kind[] = ["node", "grandmaster", "alarm", "job", "finding", "hub", "fleet"];

/** The newest message about each subject that one connection delivered, and when it arrived. */
export class ReceivedStates {
  own: string | null = null;
  readonly node = new Map<string, Entry<NodeState>>();
  readonly grandmaster = new Map<string, Entry<Grandmaster>>();
  readonly job = new Map<string, Entry<Job>>();
  readonly finding = new Map<string, Entry<Finding>>();
  readonly hub = new Map<string, Entry<Hub>>();
  fleet: Entry<FleetSummary> | null = null;

  /** The daemon sends an alarm event once, so the page keeps them across connections, the newest first. */
  constructor(public alarms: AlarmEvent[] = []) {}

  /** The first node of a connection is the daemon's own. A finding that ended is removed. */
  update<K extends Kind>(kind: K, message: Kinds[K], now: number): void {
    const set = <T>(map: Map<string, Entry<T>>, key: string, data: T): unknown => map.set(key, { data, receivedAt: now });
    const data = message as Kinds[Kind];
    if (kind === "alarm") this.alarms = [data as AlarmEvent, ...this.alarms].slice(0, ALARM_EVENTS_KEPT);
    else if (kind === "fleet") this.fleet = { data: data as FleetSummary, receivedAt: now };
    else if (kind === "node") {
      this.own ??= (data as NodeState).node;
      set(this.node, (data as NodeState).node, data as NodeState);
    } else if (kind === "grandmaster") set(this.grandmaster, (data as Grandmaster).name, data as Grandmaster);
    else if (kind === "job") set(this.job, (data as Job).job_id, data as Job);
    else if (kind === "hub") set(this.hub, (data as Hub).node, data as Hub);
    else this.updateFinding(data as Finding, now);
  }

  /** When the present state of this message's subject arrived; undefined: there is none. */
  receivedAt<K extends Kind>(kind: K, message: Kinds[K]): number | undefined {
    const data = message as unknown as { node: string; name: string; job_id: string };
    if (kind === "node") return this.node.get(data.node)?.receivedAt;
    if (kind === "grandmaster") return this.grandmaster.get(data.name)?.receivedAt;
    if (kind === "job") return this.job.get(data.job_id)?.receivedAt;
    return kind === "hub" ? this.hub.get(data.node)?.receivedAt : undefined;
  }

  private updateFinding(finding: Finding, now: number): void {
    const key = JSON.stringify([finding.id, finding.subject]);
    if (finding.until_realtime_ns !== null) this.finding.delete(key);
    else this.finding.set(key, { data: finding, receivedAt: now });
  }
}
