// What is known, how it ages, and how numbers are written. No DOM here.

const NS_PER_MS = 1e6;
const DUE_MS = 2500;
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** Up, but not for what only binary fractions add: 1100 ns is 1.10 µs. */
export const up = (value) => Math.ceil(value - 1e-9);

/** A duration with three figures and its unit. A bound is rounded up, so that it is never understated. */
export function duration(ns, round = Math.round) {
  if (ns === null || ns === undefined) return "—";
  const size = Math.abs(ns);
  const [unit, name] = UNITS.find(([limit]) => size >= limit) ?? UNITS[3];
  const digits = unit === 1 ? 0 : size / unit >= 100 ? 0 : size / unit >= 10 ? 1 : 2;
  const text = (round((size / unit) * 10 ** digits) / 10 ** digits).toFixed(digits);
  return `${ns < 0 ? "−" : ""}${text} ${name}`;
}

export const signed = (ns) => (ns > 0 ? "+" : "") + duration(ns);
export const bound = (ns) => (ns === null || ns === undefined ? "none" : `±${duration(ns, up)}`);
/** A step's key is its epoch and its number; of the epoch 0 the number alone. */
export function stepText(key) {
  if (key === null) return "—";
  const epoch = Math.floor(key / 2 ** 32);
  return epoch === 0 ? String(key) : `${epoch}:${key % 2 ** 32}`;
}
export const percent = (ratio) => (ratio === null ? "—" : `${(ratio * 100).toFixed(1)} %`);

/** How long ago, in words that do not flicker. */
export function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
}

/** How long something lasts, where an hour matters: 3 h 40 min. */
export function lasts(ms) {
  const minutes = Math.max(0, Math.floor(ms / 60000));
  if (minutes < 1) return `${Math.max(0, Math.floor(ms / 1000))} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** How long until something happens, to the second while that matters. */
export function countdown(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 1) return "less than 1 s";
  return s >= 60 && s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : lasts(ms);
}

/** The local time of day, with its date where that is another day. */
export function moment(realtimeNs) {
  const at = new Date(realtimeNs / NS_PER_MS);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("sv")} `;
  return `${day}${clockTime(realtimeNs)}`;
}

/** Of a node without a clock source, as a mere hub. */
export const NO_CLOCK = "NO CLOCK";

export const SIGNS = { SYNCHRONIZED: "●", HOLDOVER: "◐", DISRUPTED: "✕", UNKNOWN: "?", [NO_CLOCK]: "–" };
export const LOOKS = { SYNCHRONIZED: "good", HOLDOVER: "warn", DISRUPTED: "bad", UNKNOWN: "unknown", [NO_CLOCK]: "quiet" };

/** A status as a cell: its sign, its name and its colour. */
export const word = (status, prefix = "") => ({ text: `${SIGNS[status]} ${prefix}${status}`, look: LOOKS[status] });

const ALARM_LOOKS = { critical: "bad", major: "bad", minor: "warn" };
export const alarmLook = (severity) => ALARM_LOOKS[severity] ?? "unknown";

export const clockTime = (realtimeNs) => new Date(realtimeNs / NS_PER_MS).toLocaleTimeString([], { hour12: false });

/** The status table of the clock: what was written ages while no message comes. */
export function statusAt(written, ageNs, node) {
  if (written === "UNKNOWN" || written === "DISRUPTED" || ageNs === null) return written;
  if (ageNs < 0 || ageNs >= node.void_after_ns) return "UNKNOWN";
  return ageNs < node.holdover_after_ns ? "SYNCHRONIZED" : "HOLDOVER";
}

/** A bound message at this age; null where there is none. */
export function boundAt(message, ageNs) {
  if (!message || message.bound_ns === null || ageNs === null) return null;
  return message.bound_ns + Math.ceil((message.growth_ppb * ageNs) / 1e9);
}

/** The code of the reason of a source that knows UTC and no grandmaster. */
const NO_GRANDMASTER = "no_grandmaster";
const WITHOUT_GRANDMASTER = ["utc", "phc", "kernel"];

/** A node that NTP keeps: then UTC is what is told first. */
export const knowsUtcAlone = (node) =>
  node.gm?.reason_code === NO_GRANDMASTER && node.sources.every((source) => WITHOUT_GRANDMASTER.includes(source.kind));

const LIMITS = [[1e3, "1 µs"], [1e4, "10 µs"], [1e5, "100 µs"], [1e6, "1 ms"]];

/** If samples stop: when the bound leaves the next limit, and when nothing holds any more. */
export function forecast(message, ageNs, voidAfterNs) {
  const nowNs = boundAt(message, ageNs);
  if (nowNs === null || ageNs >= voidAfterNs) return "";
  const end = `void in ${countdown((voidAfterNs - ageNs) / NS_PER_MS)}`;
  const [limit, name] = LIMITS.find(([ns]) => ns >= nowNs) ?? [];
  const inNs = limit && message.growth_ppb ? ((limit - message.bound_ns) * 1e9) / message.growth_ppb - ageNs : Infinity;
  return inNs < voidAfterNs - ageNs ? `leaves ${name} in ${countdown(inNs / NS_PER_MS)}; ${end}` : end;
}

const watches = (node) => node.sources.length > 0 || node.age_ns !== null;

/** A node as it stands now: age, statuses, bounds, and for how long. */
export function nodeNow(node, heardAt, now) {
  // The next message is due within this: a bound is shown as it was sent, and ages when the message is overdue.
  const silentMs = now - heardAt;
  const sinceHeardNs = silentMs < DUE_MS ? 0 : silentMs * NS_PER_MS;
  const ageNs = node.age_ns === null ? null : node.age_ns + sinceHeardNs;
  const status = statusAt(node.status, ageNs, node);
  const utcStatus = statusAt(node.utc_status, ageNs, node);
  const alone = knowsUtcAlone(node);
  const [main, written] = watches(node) ? (alone ? [utcStatus, node.utc_status] : [status, node.status]) : [NO_CLOCK, NO_CLOCK];
  const usable = (message, its) => (its === "UNKNOWN" || its === "DISRUPTED" ? null : boundAt(message, ageNs));
  const gmNs = usable(node.gm, status), utcNs = usable(node.utc, utcStatus);
  const mainNs = alone ? utcNs : gmNs;
  return {
    ageNs, status, utcStatus, gmNs, utcNs, alone, main, mainNs,
    asWritten: main === written,
    parentNs: usable(node.parent, status), parentStatNs: usable(node.parent_stat, status),
    gmStatNs: usable(node.gm_stat, status), utcStatNs: usable(node.utc_stat, utcStatus),
    forecast: mainNs === null ? "" : forecast(alone ? node.utc : node.gm, ageNs, node.void_after_ns),
    lastingMs: lasting(node, main, written, ageNs, sinceHeardNs),
  };
}

function lasting(node, status, written, ageNs, sinceHeardNs) {
  if (status !== written) {
    return (ageNs - (status === "HOLDOVER" ? node.holdover_after_ns : node.void_after_ns)) / NS_PER_MS;
  }
  if (node.since_realtime_ns === null || status === NO_CLOCK) return null;
  return (node.published_realtime_ns - node.since_realtime_ns + sinceHeardNs) / NS_PER_MS;
}

/** What a poll told of a grandmaster's own error holds no longer than this. */
const UNIT_HOLDS_NS = 1e12;

/** A grandmaster as it stands now: its own error against UTC, what is left of its holdover budget, and for how long. */
export function unitNow(unit, heardAt, now) {
  const silentNs = Math.max(0, now - heardAt) * NS_PER_MS;
  const ageNs = unit.age_ns === null ? null : unit.age_ns + silentNs;
  const leftNs = unit.holdover_left_ns === null || ageNs === null ? null : Math.max(0, unit.holdover_left_ns - ageNs);
  const holds = ageNs !== null && ageNs <= UNIT_HOLDS_NS && leftNs !== 0;
  const since = unit.clock_state_since_realtime_ns;
  const lastingNs = since === null ? null : unit.published_realtime_ns - since + silentNs;
  return {
    ageNs, leftNs, lastingNs, utcNs: holds ? boundAt(unit.utc, ageNs) : null,
    used: leftNs === null || lastingNs === null ? null : lastingNs / Math.max(1, lastingNs + leftNs),
    isFine: unit.reachable && unit.clock_state === "locked" && !unit.alarms?.length,
  };
}

const ALARM_EVENTS_KEPT = 20;

const KEYS = {
  node: (data) => data.node, grandmaster: (data) => data.name, job: (data) => data.job_id,
  hub: (data) => data.node,
  finding: (data) => JSON.stringify([data.id, data.subject]),
};

/** Everything heard on one connection: the newest of each, and when it came. */
export class Known {
  /** Alarm events are told once, so they are kept from connection to connection; the newest come first. */
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

  /** The first node of a connection is the daemon's own. A finding that is over goes. */
  take(kind, data, now) {
    if (kind === "alarm") {
      this.alarms = [data, ...this.alarms].slice(0, ALARM_EVENTS_KEPT);
      return;
    }
    if (kind === "fleet") {
      this.fleet = { data, heardAt: now };
      return;
    }
    const key = KEYS[kind](data);
    if (kind === "node") this.own ??= key;
    if (kind === "finding" && data.until_realtime_ns !== null) this.finding.delete(key);
    else this[kind].set(key, { data, heardAt: now });
  }
}
