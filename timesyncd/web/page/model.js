// The received states, how they age, and how numbers are written. No DOM here.

const NS_PER_MS = 1e6;
const NS_PER_S = 1_000_000_000n;
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** Rounds up, but ignores what only binary fractions add: 1100 ns is 1.10 µs. */
export const roundUp = (value) => Math.ceil(value - 1e-9);

/** A duration with three significant digits and its unit. Round a bound up, so that it is never understated. */
export function duration(ns, round = Math.round) {
  if (ns === null || ns === undefined) return "—";
  const size = Math.abs(ns);
  const [unit, name] = UNITS.find(([limit]) => size >= limit) ?? UNITS[3];
  const digits = unit === 1 ? 0 : size / unit >= 100 ? 0 : size / unit >= 10 ? 1 : 2;
  const text = (round((size / unit) * 10 ** digits) / 10 ** digits).toFixed(digits);
  return `${ns < 0 ? "−" : ""}${text} ${name}`;
}

export const signed = (ns) => (ns > 0 ? "+" : "") + duration(ns);
export const bound = (ns) => (ns === null || ns === undefined ? "none" : `±${duration(ns, roundUp)}`);

/** A step's key contains its epoch and its number; in epoch 0 the text is the number alone. */
export function stepText(key) {
  if (key === null) return "—";
  const epoch = Math.floor(key / 2 ** 32);
  return epoch === 0 ? String(key) : `${epoch}:${key % 2 ** 32}`;
}
export const percent = (ratio) => (ratio === null ? "—" : `${(ratio * 100).toFixed(1)} %`);

/** An elapsed time, coarse enough that its text does not flicker. */
export function elapsedText(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
}

/** A duration to the minute, where an hour matters: 3 h 40 min. */
export function durationText(ms) {
  const minutes = Math.max(0, Math.floor(ms / 60000));
  if (minutes < 1) return `${Math.max(0, Math.floor(ms / 1000))} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** The remaining time, to the second while that matters. */
export function remainingText(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 1) return "under 1 s";
  return s >= 60 && s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : durationText(ms);
}

export const timeOfDay = (realtimeNs) => new Date(realtimeNs / NS_PER_MS).toLocaleTimeString([], { hour12: false });

/** The local time of day, after its date where that is not today. */
export function timeText(realtimeNs) {
  const at = new Date(realtimeNs / NS_PER_MS);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("sv")} `;
  return `${day}${timeOfDay(realtimeNs)}`;
}

/** The page's status of a daemon without a clock source, for example of a hub alone. */
export const NO_CLOCK = "NO CLOCK";

export const STATUS_SIGNS = { SYNCHRONIZED: "●", HOLDOVER: "◐", DISRUPTED: "✕", UNKNOWN: "?", [NO_CLOCK]: "–" };
export const STATUS_CLASSES = { SYNCHRONIZED: "good", HOLDOVER: "warn", DISRUPTED: "bad", UNKNOWN: "unknown", [NO_CLOCK]: "quiet" };

/** A status as a table cell: its sign, its name and its class. */
export const statusCell = (status, prefix = "") => ({ text: `${STATUS_SIGNS[status]} ${prefix}${status}`, className: STATUS_CLASSES[status] });

const ALARM_CLASSES = { critical: "bad", major: "bad", minor: "warn" };
export const alarmClass = (severity) => ALARM_CLASSES[severity] ?? "unknown";

/** The clock's status at this age, by the table that every reader of a bound applies: a published status ages while no message arrives. */
export function statusAt(published, ageNs, node) {
  if (published === "UNKNOWN" || published === "DISRUPTED" || ageNs === null) return published;
  if (ageNs < 0 || ageNs >= node.void_after_ns) return "UNKNOWN";
  return ageNs < node.holdover_after_ns ? "SYNCHRONIZED" : "HOLDOVER";
}

/**
 * A bound at this age in ns, rounded up so that it is never understated; null = unbounded.
 * The twin of `Bound.at` in timesyncd/bound.py; tests/recordings/bound_growth.json holds both.
 * In BigInt, because growth times age exceeds 2^53.
 */
export function boundAt(message, ageNs) {
  if (!message || message.bound_ns === null || ageNs === null) return null;
  const product = BigInt(message.growth_ppb) * BigInt(Math.ceil(ageNs));
  const grown = product / NS_PER_S + (product % NS_PER_S > 0n ? 1n : 0n); // BigInt division truncates towards 0
  return Number(BigInt(message.bound_ns) + grown);
}

const SOURCES_WITHOUT_GRANDMASTER = ["utc", "phc", "kernel"];

/** Whether NTP alone keeps this node: then the page shows UTC first. */
export const isUtcOnly = (node) =>
  node.gm?.reason_code === "no_grandmaster" && node.sources.every((source) => SOURCES_WITHOUT_GRANDMASTER.includes(source.kind));

const LIMITS = [[1e3, "1 µs"], [1e4, "10 µs"], [1e5, "100 µs"], [1e6, "1 ms"]];

/** When the bound exceeds the next limit and when it expires, if no new sample or state arrives. */
export function forecast(message, ageNs, voidAfterNs) {
  const nowNs = boundAt(message, ageNs);
  if (nowNs === null || ageNs >= voidAfterNs) return "";
  const end = `expires in ${remainingText((voidAfterNs - ageNs) / NS_PER_MS)}`;
  const [limit, name] = LIMITS.find(([ns]) => ns >= nowNs) ?? [];
  const inNs = limit && message.growth_ppb ? ((limit - message.bound_ns) * 1e9) / message.growth_ppb - ageNs : Infinity;
  return inNs < voidAfterNs - ageNs ? `exceeds ${name} in ${remainingText(inNs / NS_PER_MS)}, ${end}` : end;
}

/** The next message arrives within this time. Until then the page shows a bound as it was published, and after that it ages. */
const NEXT_STATE_WITHIN_MS = 2500;

const hasClock = (node) => node.sources.length > 0 || node.age_ns !== null;

/** A node's age, statuses and bounds now, and how long it has had its status. */
export function nodeNow(node, receivedAt, now) {
  const silentMs = now - receivedAt;
  const sinceReceivedNs = silentMs < NEXT_STATE_WITHIN_MS ? 0 : silentMs * NS_PER_MS;
  const ageNs = node.age_ns === null ? null : node.age_ns + sinceReceivedNs;
  const status = statusAt(node.status, ageNs, node);
  const utcStatus = statusAt(node.utc_status, ageNs, node);
  const utcOnly = isUtcOnly(node);
  const [mainStatus, published] = hasClock(node) ? (utcOnly ? [utcStatus, node.utc_status] : [status, node.status]) : [NO_CLOCK, NO_CLOCK];
  const usable = (message, its) => (its === "UNKNOWN" || its === "DISRUPTED" ? null : boundAt(message, ageNs));
  const gmNs = usable(node.gm, status), utcNs = usable(node.utc, utcStatus);
  const mainNs = utcOnly ? utcNs : gmNs;
  return {
    ageNs, status, utcStatus, gmNs, utcNs, isUtcOnly: utcOnly, mainStatus, mainNs,
    isAsPublished: mainStatus === published,
    parentNs: usable(node.parent, status), parentStatNs: usable(node.parent_stat, status),
    gmStatNs: usable(node.gm_stat, status), utcStatNs: usable(node.utc_stat, utcStatus),
    forecast: mainNs === null ? "" : forecast(utcOnly ? node.utc : node.gm, ageNs, node.void_after_ns),
    inStatusMs: inStatusMs(node, mainStatus, published, ageNs, sinceReceivedNs),
  };
}

function inStatusMs(node, status, published, ageNs, sinceReceivedNs) {
  if (status !== published) {
    return (ageNs - (status === "HOLDOVER" ? node.holdover_after_ns : node.void_after_ns)) / NS_PER_MS;
  }
  if (node.since_realtime_ns === null || status === NO_CLOCK) return null;
  return (node.published_realtime_ns - node.since_realtime_ns + sinceReceivedNs) / NS_PER_MS;
}

/** A grandmaster's own error expires so long after the poll. */
const GRANDMASTER_EXPIRES_NS = 1e12;

/** A grandmaster's error against UTC now, what is left of its holdover budget, and how long it has had its clock state. */
export function grandmasterNow(grandmaster, receivedAt, now) {
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

const KEYS = {
  node: (data) => data.node, grandmaster: (data) => data.name, job: (data) => data.job_id,
  hub: (data) => data.node,
  finding: (data) => JSON.stringify([data.id, data.subject]),
};

/** The newest message about each subject that one connection delivered, and when it arrived. */
export class ReceivedStates {
  /** The daemon sends an alarm event once, so the page keeps them across connections, the newest first. */
  constructor(alarms = []) {
    this.own = null;
    this.alarms = alarms;
    this.node = new Map();
    this.grandmaster = new Map();
    this.job = new Map();
    this.finding = new Map();
    this.hub = new Map();
    this.fleet = null;
  }

  /** The first node of a connection is the daemon's own. A finding that ended is removed. */
  update(kind, data, now) {
    if (kind === "alarm") {
      this.alarms = [data, ...this.alarms].slice(0, ALARM_EVENTS_KEPT);
      return;
    }
    if (kind === "fleet") {
      this.fleet = { data, receivedAt: now };
      return;
    }
    const key = KEYS[kind](data);
    if (kind === "node") this.own ??= key;
    if (kind === "finding" && data.until_realtime_ns !== null) this.finding.delete(key);
    else this[kind].set(key, { data, receivedAt: now });
  }
}
