// The section of a clock's stability: MTIE and TDEV with a mask's limits, time error, and the mask's verdict; of a node, of a pair of nodes
// and of a grandmaster's channel. Mask, source, channel and the second node are in the address.

import { CurveChart } from "../chart.ts";
import { fillTable, h, number, put, type Row } from "../dom.ts";
import { atZone, place } from "../place.ts";
import { RangeRequest } from "../series.ts";
import { basisText, curvesOf, deviationCells, limitCells, nsText, numbersOf, outcomeCell, secondsText } from "../stability.ts";
import type { StabilityAnswer, StabilityReport, StabilitySeries } from "../types.ts";

/** cTE needs 1,000 s; a daemon computes 40,000 readings at most, which at 16 Hz are so long. */
const LEAST_MS = 2_400_000;
/** Viewers that ask for the same minute share one computation. */
const ROUNDED_MS = 60_000;
const REFRESH_MS = 120_000;
/** Of a pair the daemon first asks another one for its readings. */
const WITHIN_MS = 90_000;

const CAVEATS: Record<string, string> = {
  node: "A measured offset is what the servo reports against its reference, not the truth: no asymmetry of the path is in it.",
  pair: "The difference of two measured offsets is what the servos report, not the truth: no asymmetry of a path is in it.",
  grandmaster: "A time error is what the grandmaster measures of this channel against its own reference, not the truth.",
};
const CHART_TITLES = {
  raw: "MTIE and TDEV",
  low: "MTIE and TDEV of dTE_L: after the low-pass of 0.1 Hz",
  "low unknown": "MTIE and TDEV; this mask limits those after a low-pass of 0.1 Hz, which are unknown",
};
const MASKS_CAVEAT = "The masks are for a laboratory: in the field a fail is no verdict on a device.";

interface Subject {
  /** null: this daemon's own node, or a grandmaster that it polls. */
  node: string | null;
  name: string;
  sources: string[];
  isGrandmaster: boolean;
}

export class StabilitySection {
  private answer: StabilityAnswer | null = null;
  private hasFailed = false;
  private asked = "";
  private readonly request = new RangeRequest<StabilityAnswer>((subject) => `api/v1/stability?${query(JSON.parse(subject) as Record<string, string>)}`, (answer) => {
    this.answer = answer;
    this.hasFailed = answer === null;
  }, REFRESH_MS, WITHIN_MS);
  private readonly chart: CurveChart;

  constructor(private readonly host: HTMLElement, private readonly usualMask: string) {
    const template = document.getElementById("stability-template") as HTMLTemplateElement;
    host.append(template.content.cloneNode(true));
    this.chart = new CurveChart(this.field("chart"), {
      name: "MTIE and TDEV with the limits of the mask", height: 300, log: true, least: 0.001, spansGaps: true, xName: "τ",
      lines: [
        { label: "MTIE", colour: "series-1", width: 2 }, { label: "TDEV", colour: "series-2", width: 2 },
        { label: "limit of MTIE", colour: "series-1", dash: [5, 4] }, { label: "limit of TDEV", colour: "series-2", dash: [5, 4] },
      ],
      xText: secondsText, yText: nsText, marks: () => [],
    });
    for (const name of ["source", "channel", "against", "mask"]) {
      this.field<HTMLSelectElement>(name).addEventListener("change", (event) => place.go(place.with({ [name]: (event.target as HTMLSelectElement).value })));
    }
  }

  private field<T extends HTMLElement = HTMLElement>(name: string): T {
    return this.host.querySelector(`[data-field="${name}"]`) as T;
  }

  render(subject: Subject, now: number): void {
    const source = subject.sources.find((each) => each === place.query.get("source")) ?? subject.sources[0] ?? null;
    this.host.hidden = source === null;
    if (source === null) return;
    const against = subject.isGrandmaster ? null : place.query.get("against");
    const asked = JSON.stringify({ source, ...(subject.node === null ? {} : { node: subject.node }), ...(against === null ? {} : { against }) });
    if (asked !== this.asked) Object.assign(this, { asked, answer: null, hasFailed: false });
    this.request.tick(asked, now);
    this.select("source", subject.sources, source, subject.isGrandmaster || subject.sources.length < 2);
    const others = [...new Set([...(this.answer?.peers ?? []), ...(against === null ? [] : [against])])].sort();
    this.select("against", ["", ...others], against ?? "", subject.isGrandmaster || others.length === 0);
    put(this.field("title"), `Stability of ${against === null ? subject.name : `${subject.name} minus ${against}`}`);
    put(this.field("caveat"), `${CAVEATS[subject.isGrandmaster ? "grandmaster" : against === null ? "node" : "pair"]} ${MASKS_CAVEAT}`);
    this.renderAnswer();
  }

  private renderAnswer(): void {
    const all = this.answer?.series ?? [];
    const series = all.find(({ channel }) => channel !== null && channel === place.query.get("channel")) ?? all[0];
    const channels = all.flatMap(({ channel }) => channel ?? []);
    this.select("channel", channels, series?.channel ?? "", channels.length < 2);
    const report = series?.report ?? null;
    const waiting = this.hasFailed ? "unknown: the daemon gave no answer; the page asks again" : "computing";
    put(this.field("problem"), report !== null ? "" : this.answer === null ? waiting : `unknown: ${series?.problem ?? this.answer.problem ?? "no reading"}`);
    put(this.field("span"), this.answer === null ? "" : `${atZone(this.answer.begin_realtime_ns)} to ${atZone(this.answer.end_realtime_ns)}`);
    for (const name of ["mask-label", "body", "intervals"]) this.field(name).hidden = report === null;
    put(this.field("basis"), report === null ? "" : [basisText(report), pairText(series)].filter(Boolean).join(". "));
    if (report !== null) this.renderReport(report);
    else put(this.field("outcome"), "");
  }

  private renderReport(report: StabilityReport): void {
    const masks = this.answer?.masks ?? [];
    const mask = masks.find(({ name }) => name === place.query.get("mask")) ?? masks.find(({ name }) => name === this.usualMask);
    const verdict = report.verdicts.find((each) => each.mask === mask?.name);
    this.select("mask", masks.map(({ name }) => name), mask?.name ?? "", false);
    const outcome = outcomeCell(verdict?.outcome ?? "unknown");
    put(this.field("outcome"), outcome.text, outcome.className);
    const { kind, taus, columns } = curvesOf(report, mask);
    put(this.field("chart-title"), CHART_TITLES[kind]);
    this.chart.set(taus, columns);
    fillTable(this.field("limits"), [
      ...(verdict?.limits ?? []).map((limit): Row => {
        const [name, source, value, allowed, judged, reason] = limitCells(limit);
        return [`${name} ${source}`, name, number(value), number(allowed), judged, { text: [reason, source].filter(Boolean).join("; "), className: "quiet" }];
      }),
      ...(verdict?.not_compared ?? []).map((text): Row => [text, { text, className: "quiet" }, "", "", "", { text: "not compared", className: "quiet" }]),
    ]);
    fillTable(this.field("numbers"), numbersOf(report).map(([key, name, value]) => [key, name, { text: value, className: value.startsWith("unknown") ? "unknown" : "number" }]));
    fillTable(this.field("deviations"), report.deviations.map((each) => [String(each.tau_ns), ...deviationCells(each).map(number)]));
  }

  /** Fills a select only when its options change, so that an open one stays open. */
  private select(name: string, values: string[], value: string, isHidden: boolean): void {
    const select = this.field<HTMLSelectElement>(name);
    this.field(`${name}-label`).hidden = isHidden;
    const drawn = JSON.stringify(values);
    if (select.dataset.drawn !== drawn) {
      select.dataset.drawn = drawn;
      select.replaceChildren(...values.map((each) => h("option", { value: each }, each === "" ? "none" : each)));
    }
    if (select.value !== value) select.value = value;
  }
}

function pairText(series: StabilitySeries | undefined): string {
  if (series === undefined || series.references.length === 0) return "";
  return `Compared against ${series.references.join(", ")}: that reference's own error is in both offsets, and not in the difference. ${series.left_out}`.trim();
}

/** The address's range, at least 40 min of it, and of a live one whole minutes. */
function query(subject: Record<string, string>): URLSearchParams {
  const [from, to] = place.limits(Date.now());
  const untilMs = place.range.kind === "live" ? Math.floor(to / ROUNDED_MS) * ROUNDED_MS : to;
  const sinceMs = Math.min(place.range.kind === "live" ? Math.floor(from / ROUNDED_MS) * ROUNDED_MS : from, untilMs - LEAST_MS);
  return new URLSearchParams({ ...subject, since: new Date(sinceMs).toISOString(), until: new Date(untilMs).toISOString() });
}
