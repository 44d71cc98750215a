// The time range, the cursor and the time zone of the view, as the address has them. Pure; times are Unix milliseconds.

const UNITS_MS: Record<string, number> = { s: 1e3, m: 60e3, h: 3_600e3, d: 86_400e3 };
export const SPANS = ["5m", "15m", "1h", "6h", "24h", "7d", "90d"];
export const DEFAULT_SPAN = "15m";
const DEFAULT_MS = 900e3;
const MOST_MS = 400 * 86_400e3;

export type Zone = "utc" | "local";

/** Live: the last `spanMs`, which move with the clock. Fixed: from `fromMs` to `toMs`. */
export type Range = { kind: "live"; span: string; spanMs: number } | { kind: "fixed"; fromMs: number; toMs: number };

export const DEFAULT_RANGE: Range = { kind: "live", span: DEFAULT_SPAN, spanMs: DEFAULT_MS };

/** "90m" in milliseconds; null: not a span. */
export function spanMs(text: string): number | null {
  const found = /^([1-9]\d{0,4})([smhd])$/.exec(text);
  if (found === null) return null;
  const ms = Number(found[1]) * (UNITS_MS[found[2] ?? ""] ?? 0);
  return ms <= MOST_MS ? ms : null;
}

/** A demo's story takes five minutes, and nothing is older. */
export const DEMO_RANGE: Range = { kind: "live", span: "5m", spanMs: 300e3 };

/** The range in an address; one that cannot be understood is the default. */
export function rangeOf(query: URLSearchParams, usual: Range = DEFAULT_RANGE): Range {
  const [fromMs, toMs] = [Date.parse(query.get("from") ?? ""), Date.parse(query.get("to") ?? "")];
  if (fromMs < toMs && toMs - fromMs <= MOST_MS) return { kind: "fixed", fromMs, toMs };
  const given = query.get("last") ?? "";
  const ms = spanMs(given);
  return ms === null ? usual : { kind: "live", span: given, spanMs: ms };
}

/** The parameters of the address that state this range. */
export function rangeParameters(range: Range, usual: Range = DEFAULT_RANGE): Record<string, string | null> {
  if (range.kind === "fixed") return { last: null, from: new Date(range.fromMs).toISOString(), to: new Date(range.toMs).toISOString() };
  return { last: usual.kind === "live" && range.span === usual.span ? null : range.span, from: null, to: null };
}

/** The first and the last moment of a range. */
export const limitsOf = (range: Range, nowMs: number): [number, number] =>
  range.kind === "live" ? [nowMs - range.spanMs, nowMs] : [range.fromMs, range.toMs];

/** The range moved by a share of its length; it stays before now. */
export function panned(range: Range, share: number, nowMs: number): Range {
  const [from, to] = limitsOf(range, nowMs);
  const by = Math.min((to - from) * share, nowMs - to);
  return { kind: "fixed", fromMs: from + by, toMs: to + by };
}

/** The range with its length multiplied, around its middle; it stays before now. */
export function zoomed(range: Range, factor: number, nowMs: number): Range {
  const [from, to] = limitsOf(range, nowMs);
  const half = Math.min(MOST_MS, Math.max(10e3, (to - from) * factor)) / 2;
  const toMs = Math.min(nowMs, (from + to) / 2 + half);
  return { kind: "fixed", fromMs: toMs - 2 * half, toMs };
}

const two = (value: number): string => String(value).padStart(2, "0");

function parts(ms: number, zone: Zone): [day: string, time: string] {
  const at = new Date(ms);
  if (zone === "utc") return [at.toISOString().slice(0, 10), at.toISOString().slice(11, 19)];
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return [day, `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`];
}

export const timeOfDay = (ms: number, zone: Zone): string => parts(ms, zone)[1];

/** The time of day, after its date where that is not today's. */
export function timeText(ms: number, zone: Zone, nowMs: number = Date.now()): string {
  const [day, time] = parts(ms, zone);
  return day === parts(nowMs, zone)[0] ? time : `${day} ${time}`;
}

const TICK_STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000];
const DAY_MS = 86_400e3;

/** At most so many round moments of a range, with their texts: of a step of days the date, else the time of day. */
export function ticksOf(fromMs: number, toMs: number, most: number, zone: Zone): { ms: number; text: string }[] {
  const stepMs = (TICK_STEPS_S.find((step) => (toMs - fromMs) / (step * 1e3) <= most) ?? 7_776_000) * 1e3;
  const shiftMs = zone === "utc" ? 0 : -new Date(toMs).getTimezoneOffset() * 60e3;
  const first = Math.ceil((fromMs + shiftMs) / stepMs) * stepMs - shiftMs;
  return Array.from({ length: Math.max(0, Math.floor((toMs - first) / stepMs) + 1) }, (_, index) => first + index * stepMs).map((ms) => {
    const [day, time] = parts(ms, zone);
    return { ms, text: stepMs >= DAY_MS ? day.slice(5) : stepMs >= 60e3 ? time.slice(0, 5) : time };
  });
}

export const zoneName = (zone: Zone): string => (zone === "utc" ? "UTC" : "local time");

/** "last 6 h", or both ends. */
export function rangeText(range: Range, zone: Zone): string {
  if (range.kind === "live") return `last ${range.span.replace(/(\d+)([smhd])/, (_, count, unit) => `${count} ${unit === "m" ? "min" : unit}`)}`;
  const [fromDay, from] = parts(range.fromMs, zone);
  const [toDay, to] = parts(range.toMs, zone);
  return `${fromDay} ${from} to ${fromDay === toDay ? to : `${toDay} ${to}`} ${zoneName(zone)}`;
}
