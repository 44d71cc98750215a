// The active findings with evidence, cause and remedy, and the events that the daemon's store has.

import { groupBy } from "../track.ts";
import { PagedList } from "../api.ts";
import { byId, fillTable, h, put, type Cell, type Row } from "../dom.ts";
import { stateWord } from "../lanes.ts";
import { bound, elapsedText, withMicro, type Entry } from "../model.ts";
import { at, place } from "../place.ts";
import { spanQuery } from "../series.ts";
import { state } from "../state.ts";
import type { CloudEvent, Finding, Severity } from "../types.ts";

const SEVERITY_CLASSES: Record<Severity, string> = { critical: "bad", warning: "warn", info: "unknown" };
export const SEVERITY_ORDER: Severity[] = ["critical", "warning", "info"];
/** More findings of one kind than this share one row. */
const MAX_SINGLE_ROWS = 3;
const MAX_ROWS = 30;
const MAX_NAMES = 12;
const MAX_ATTENTION = 8;

/** The findings by kind, the most severe first. */
function grouped(findings: Map<string, Entry<Finding>>): Finding[][] {
  const groups = groupBy([...findings.values()].map(({ data }) => data), ({ id, severity }) => `${severity} ${id}`);
  return [...groups.values()].toSorted((a, b) => SEVERITY_ORDER.indexOf((a[0] as Finding).severity) - SEVERITY_ORDER.indexOf((b[0] as Finding).severity));
}

export function renderFindings(findings: Map<string, Entry<Finding>>): void {
  byId("no-findings").hidden = findings.size > 0;
  const rows = grouped(findings).flatMap((group) => (group.length > MAX_SINGLE_ROWS ? [groupRow(group)] : group.map(findingRow)));
  fillTable(byId("findings"), rows.slice(0, MAX_ROWS));
  put(byId("more-findings"), rows.length > MAX_ROWS ? `${rows.length - MAX_ROWS} more rows: see api/v1/findings` : "");
}

const findingRow = (finding: Finding): Row => row(`${finding.id} ${finding.subject}`, finding, finding.subject, `${finding.evidence}${handledText(finding)}`, linkOf(finding.subject));

/** ". Silenced by ada until 04:00:00: known": who took a finding. */
function handledText(finding: Finding): string {
  const by = state.handledBy(finding.id, finding.subject);
  if (by === undefined) return "";
  return `. ${by.until_realtime_ns === null ? "Acknowledged" : "Silenced"} by ${by.author}${by.until_realtime_ns === null ? "" : ` until ${at(by.until_realtime_ns)}`}: ${by.text}`;
}

const oldestOf = (group: Finding[]): Finding => group.toSorted((a, b) => a.since_realtime_ns - b.since_realtime_ns)[0] as Finding;

/** Findings of one kind: their number, their subjects, and the evidence of the oldest one. */
function groupRow(group: Finding[]): Row {
  const names = group.map(({ subject }) => subject).toSorted();
  const oldest = oldestOf(group);
  const rest = names.length > MAX_NAMES ? ` and ${names.length - MAX_NAMES} more` : "";
  return row(`${oldest.id} *`, oldest, `${names.length} findings: ${names.slice(0, MAX_NAMES).join(", ")}${rest}`, `Oldest, ${oldest.subject}: ${oldest.evidence}`);
}

const row = (key: string, { id, severity, cause, remedy, chain, since_realtime_ns: since }: Finding, subject: string, evidence: string, href?: string): Row => [
  key, { text: `▲ ${severity}`, className: SEVERITY_CLASSES[severity] }, href === undefined ? `${id} · ${subject}` : { text: `${id} · ${subject}`, href },
  { text: withMicro(`Since ${at(since)}. ${evidence}. Cause: ${cause}. Remedy: ${remedy}.`).replaceAll("..", "."), chain: chain.map((step) => withMicro(step.text)) },
];

/** What the headline says that no finding does: it needs attention before the findings. */
export interface Urgent {
  tag: string;
  className: string;
  text: string;
  href: string;
  why: string;
}

/** The kinds of findings in few words each, with the remedy. */
export function renderAttention(findings: Map<string, Entry<Finding>>, urgent: Urgent[], now: number): void {
  const open = new Map([...findings].filter(([, { data }]) => state.handledBy(data.id, data.subject) === undefined));
  const groups = grouped(open);
  const taken = findings.size - open.size;
  put(byId("attention-count"), findings.size + urgent.length === 0 ? "" : `${open.size + urgent.length} open${groups.length > MAX_ATTENTION ? `, the first ${MAX_ATTENTION} kinds` : ""}${taken > 0 ? `, ${taken} acknowledged` : ""}`);
  put(byId("no-attention"), taken > 0 ? "Every active finding is acknowledged." : "No active finding.");
  byId("no-attention").hidden = open.size + urgent.length > 0;
  const list = byId("attention");
  const drawn = JSON.stringify([groups, urgent, Math.floor(now / 60_000), place.zone]);
  if (list.dataset.drawn === drawn) return;
  list.dataset.drawn = drawn;
  list.replaceChildren(...urgent.map(urgentItem), ...groups.slice(0, MAX_ATTENTION).map(attentionItem));
}

const urgentItem = ({ tag, className, text, href, why }: Urgent): HTMLElement =>
  h("li", {}, h("b", { class: `tag ${className}` }, tag), h("div", {}, h("a", { href }, text), h("p", { class: "quiet" }, why)));

function attentionItem(group: Finding[]): HTMLElement {
  const finding = oldestOf(group);
  const subject = group.length === 1 ? finding.subject : `${group.length} subjects, first ${finding.subject}`;
  return h("li", {},
    h("b", { class: `tag ${SEVERITY_CLASSES[finding.severity]}` }, finding.severity.toUpperCase()),
    h("div", {}, h("a", { href: linkOf(finding.subject) }, `${subject}: ${finding.id.replaceAll("-", " ")}`),
      h("p", { class: "quiet" }, `${elapsedText(Date.now() - finding.since_realtime_ns / 1e6)} · ${finding.remedy}`)));
}

/** The view that shows this subject. */
export function linkOf(subject: string): string {
  if (state.received.grandmaster.has(subject)) return place.link("grandmaster", subject);
  const job = [...state.received.job.values()].find(({ data }) => data.job === subject || data.job_id === subject);
  if (job) return place.link("job", job.data.job_id);
  return /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(subject) ? place.link("node", subject) : place.link("timeline");
}

/** Names of the common event types; the page shows any other type as it is. */
const TYPES: Record<string, string> = {
  "event.sync.sync-status.synchronization-state-change": "node", "event.sync.ptp-status.ptp-state-change": "grandmaster",
  "event.sync.ptp-status.ptp-clock-class-change": "clock class", "event.sync.gnss-status.gnss-state-change": "GNSS",
  "timesyncd.finding.began": "finding began", "timesyncd.finding.changed": "finding changed",
  "timesyncd.finding.ended": "finding ended", "timesyncd.grandmaster.alarm": "alarm",
  "timesyncd.operator.comment": "comment", "timesyncd.operator.deploy": "deploy",
  "timesyncd.operator.acknowledge": "acknowledged", "timesyncd.operator.silence": "silenced",
};
const STATE_CLASSES: Record<string, string> = { LOCKED: "good", SYNCHRONIZED: "good", HOLDOVER: "warn", FREERUN: "bad" };
const EVENTS_A_PAGE = 25;
const EVENTS_EVERY_MS = 10_000;

export class EventList {
  private readonly list = new PagedList<CloudEvent>(EVENTS_EVERY_MS, byId<HTMLButtonElement>("events-newer"), byId<HTMLButtonElement>("events-older"));

  /** Of a fixed range its events, live the newest ones. A daemon that stores no events shows no section. */
  render(now: number): void {
    const isFixed = place.range.kind === "fixed";
    this.list.tick(`api/v1/events?${isFixed ? spanQuery({ limit: String(EVENTS_A_PAGE) }) : `limit=${EVENTS_A_PAGE}`}`, now);
    const { items, page } = this.list;
    byId("events-section").hidden = page === 1 && (isFixed ? items === null : !items?.length);
    put(byId("events-note"), !isFixed ? "the newest first" : items?.length === 0 ? "none in this time range" : "of this time range, the newest first");
    fillTable(byId("events"), (items ?? []).map(eventRow));
  }
}

const nodeOf = (event: CloudEvent): string => event.source.split("/").at(-1) ?? event.source;
const typeText = (type: string): string => TYPES[type] ?? type;

function eventRow(event: CloudEvent): Row {
  const node = nodeOf(event);
  return [`${event.source} ${event.id}`, at(Date.parse(event.time) * 1e6), typeText(event.type),
    event.subject && event.subject !== node ? `${event.subject} (${node})` : node, dataCell(event)];
}

/** O-RAN's state with the bound, or the text of a finding or an alarm. */
function dataCell({ type, data }: CloudEvent): Cell {
  const [value, metric] = ((data.values as { value: unknown }[] | undefined) ?? []).map(({ value }) => String(value));
  if (value !== undefined) return { text: `${stateWord(type, value)}${metric ? `, ${bound(Number(metric))}` : ""}`, className: STATE_CLASSES[value] ?? "" };
  if (data.evidence !== undefined) return { text: `${String(data.id)}: ${String(data.evidence)}`, className: "" };
  return { text: [data.action, data.severity, data.text].filter(Boolean).join(" · "), className: "" };
}
