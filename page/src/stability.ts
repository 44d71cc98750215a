// A clock's stability as the daemon computed it: the columns of its chart with a mask's limits, and its numbers as texts. Pure.

import { duration, durationText, signed } from "./model.ts";
import type { Deviations, LimitVerdict, Mask, MaskLimit, StabilityReport } from "./types.ts";

const NS_PER_S = 1e9;

/** A measured value in ns with three significant digits, also below one nanosecond. */
export const nsText = (ns: number): string => (Math.abs(ns) < 1_000 ? `${+ns.toPrecision(3)} ns`.replace("-", "−") : duration(ns));
const signedText = (ns: number): string => (Math.abs(ns) < 1_000 ? `${ns > 0 ? "+" : ""}${nsText(ns)}` : signed(ns));
export const secondsText = (seconds: number): string => `${+seconds.toPrecision(4)} s`;

/** The limit at an observation interval; null: the mask has none there. */
export function limitAt(limit: MaskLimit | undefined, tauS: number): number | null {
  const segment = limit?.segments.find(({ after_s: after, until_s: until }) => after < tauS && (until === null || tauS <= until));
  return segment === undefined ? null : segment.base_ns + segment.slope_ns_per_s * tauS;
}

export interface Curves {
  /** "low": after the low-pass of 0.1 Hz, as G.8273.2 limits them; "low unknown": those, but the readings are too few for the filter. */
  kind: "raw" | "low" | "low unknown";
  taus: number[];
  /** MTIE, TDEV, and the limits of both. */
  columns: (number | null)[][];
}

/** A logarithmic axis has no place for 0. */
const drawable = (ns: number | null | undefined): number | null => (ns === null || ns === undefined || ns <= 0 ? null : ns);

/** The measured curves, and the mask's within the same observation intervals, with its corners. */
export function curvesOf(report: StabilityReport, mask: Mask | undefined): Curves {
  const limitOf = (quantity: string): MaskLimit | undefined => mask?.limits.find((limit) => limit.quantity === quantity && limit.segments.length > 0);
  const wantsLow = limitOf("dTE_L MTIE") !== undefined || limitOf("dTE_L TDEV") !== undefined;
  const isLow = wantsLow && report.deviations.some(({ mtie_low_ns: mtie }) => mtie !== null);
  const limits = isLow ? [limitOf("dTE_L MTIE"), limitOf("dTE_L TDEV")] : [limitOf("MTIE"), limitOf("TDEV")];
  const measured = new Map(report.deviations.map((each) => [each.tau_ns / NS_PER_S, each]));
  const [shortest, longest] = [Math.min(...measured.keys()), Math.max(...measured.keys())];
  const corners = limits.flatMap((limit) => limit?.segments ?? []).flatMap(({ after_s: after, until_s: until }) => [after, until ?? after]);
  const inside = corners.filter((tau) => tau > shortest && tau < longest);
  const taus = [...new Set([...measured.keys(), ...inside])].sort((a, b) => a - b);
  const values = (of: (each: Deviations) => number | null): (number | null)[] => taus.map((tau) => drawable(measured.get(tau) && of(measured.get(tau) as Deviations)));
  return {
    kind: isLow ? "low" : wantsLow ? "low unknown" : "raw", taus,
    columns: [
      values((each) => (isLow ? each.mtie_low_ns : each.mtie_ns)), values((each) => (isLow ? each.tdev_low_ns : each.tdev_ns)),
      ...limits.map((limit) => taus.map((tau) => limitAt(limit, tau))),
    ],
  };
}

/** The sign, the word and the class of an outcome. A fail is a warning: in the field it is no verdict on a device. */
export function outcomeCell(outcome: string): { text: string; className: string } {
  const [sign, className] = ({ pass: ["✓", "good"], fail: ["▲", "warn"] } as Record<string, [string, string]>)[outcome] ?? ["?", "unknown"];
  return { text: `${sign} ${outcome}`, className };
}

/** A limit as a row: its quantity with its place in the standard, the value at the worst point, what is allowed, and the verdict with its reason. */
export function limitCells(limit: LimitVerdict): [name: string, source: string, value: string, allowed: string, verdict: { text: string; className: string }, reason: string] {
  const at = limit.tau_s === null ? "" : ` at τ ${secondsText(limit.tau_s)}`;
  return [
    limit.quantity, limit.source, limit.value_ns === null ? "unknown" : `${nsText(limit.value_ns)}${at}`,
    limit.limit_ns === null ? "—" : nsText(limit.limit_ns), outcomeCell(limit.outcome), limit.reason ?? "",
  ];
}

/** The numbers without an observation interval: a name, and the value or why it is unknown. */
export function numbersOf(report: StabilityReport): [key: string, name: string, value: string][] {
  const unknown = (quantity: string): string => `unknown: ${report.reasons[quantity] ?? "no reading"}`;
  const text = (ns: number | null, quantity: string): string => (ns === null ? unknown(quantity) : nsText(ns));
  const constant = (ns: number | null): string => (ns === null ? unknown("cTE") : signedText(ns));
  return [
    ["max_abs_te_ns", "max|TE|, largest time error", text(report.max_abs_te_ns, "max|TE|")],
    ["constant_te_ns", "cTE, newest mean over 1,000 s", constant(report.constant_te_ns)],
    ["worst_constant_te_ns", `cTE, farthest from 0 of ${report.constant_te_blocks} such means`, constant(report.worst_constant_te_ns)],
    ["max_abs_te_low_ns", "max|TE_L|, after the low-pass of 0.1 Hz", text(report.max_abs_te_low_ns, "max|TE_L|")],
    ["range_high_ns", "dTE_H, peak to peak above 0.1 Hz", text(report.range_high_ns, "dTE_H peak to peak")],
  ];
}

/** An observation interval as a row of texts: τ, ADEV, TDEV, MTIE, and the last two after the low-pass. */
export function deviationCells(each: Deviations): string[] {
  const ns = (value: number | null): string => (value === null ? "—" : nsText(value));
  const adev = each.adev === null ? "—" : each.adev.toExponential(2).replace("-", "−");
  return [secondsText(each.tau_ns / NS_PER_S), adev, ns(each.tdev_ns), ns(each.mtie_ns), ns(each.tdev_low_ns), ns(each.mtie_low_ns)];
}

/** "19,200 readings, one each 125 ms; 2 gaps, ...": what the numbers rest on. */
export function basisText(report: StabilityReport): string {
  const named = (number: number, noun: string): string => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const changes = `${named(report.reference_changes, "change")} of the reference`;
  return `${named(report.samples, "reading")}, one each ${duration(report.interval_ns)}; ${named(report.gaps, "gap")}, ${changes}; the longest run without either: ${durationText(report.longest_run_ns / 1e6)}`;
}
