// The active findings with evidence, cause and remedy, and the events that the daemon's store has.

import { PagedList } from "./api.js";
import { byId, fillTable, put } from "./dom.js";
import { timeText } from "./model.js";

const SEVERITY_CLASSES = { critical: "bad", warning: "warn", info: "unknown" };
const SEVERITY_ORDER = ["critical", "warning", "info"];
/** More findings of one kind than this share one row. */
const MAX_SINGLE_ROWS = 3;
const MAX_ROWS = 30;
const MAX_NAMES = 12;

export function renderFindings(findings) {
  byId("no-findings").hidden = findings.size > 0;
  const groups = Map.groupBy([...findings.values()].map(({ data }) => data), ({ id, severity }) => `${severity} ${id}`);
  const rows = [...groups.values()]
    .toSorted(([a], [b]) => SEVERITY_ORDER.indexOf(a.severity) - SEVERITY_ORDER.indexOf(b.severity))
    .flatMap((group) => (group.length > MAX_SINGLE_ROWS ? [groupRow(group)] : group.map(findingRow)));
  fillTable(byId("findings"), rows.slice(0, MAX_ROWS));
  put(byId("more-findings"), rows.length > MAX_ROWS ? `${rows.length - MAX_ROWS} more rows: see api/v1/findings` : "");
}

const findingRow = (finding) => row(`${finding.id} ${finding.subject}`, finding, finding.subject, finding.evidence);

/** Findings of one kind: their number, their subjects, and the evidence of the oldest one. */
function groupRow(group) {
  const names = group.map(({ subject }) => subject).toSorted();
  const [oldest] = group.toSorted((a, b) => a.since_realtime_ns - b.since_realtime_ns);
  const rest = names.length > MAX_NAMES ? ` and ${names.length - MAX_NAMES} more` : "";
  return row(`${oldest.id} *`, oldest, `${names.length} findings: ${names.slice(0, MAX_NAMES).join(", ")}${rest}`, `Oldest, ${oldest.subject}: ${oldest.evidence}`);
}

const row = (key, { id, severity, cause, remedy, chain, since_realtime_ns: since }, subject, evidence) => [
  key, { text: `▲ ${severity}`, className: SEVERITY_CLASSES[severity] }, `${id} · ${subject}`,
  { text: `Since ${timeText(since)}. ${evidence}. Cause: ${cause}. Remedy: ${remedy}.`, chain: chain.map((step) => step.text) },
];

/** Names of the common event types; the page shows any other type as it is. */
const TYPES = {
  "event.sync.sync-status.synchronization-state-change": "node", "event.sync.ptp-status.ptp-state-change": "grandmaster",
  "event.sync.ptp-status.ptp-clock-class-change": "clock class", "event.sync.gnss-status.gnss-state-change": "GNSS",
  "timesyncd.finding.began": "finding began", "timesyncd.finding.changed": "finding changed",
  "timesyncd.finding.ended": "finding ended", "timesyncd.grandmaster.alarm": "alarm",
};
const STATE_CLASSES = { LOCKED: "good", SYNCHRONIZED: "good", HOLDOVER: "warn", FREERUN: "bad" };
const EVENTS_A_PAGE = 25;
const EVENTS_EVERY_MS = 10_000;

export class EventList {
  constructor() {
    this.list = new PagedList(EVENTS_EVERY_MS, [byId("events-newer"), byId("events-older")]);
  }

  /** A daemon that stores no events shows no section. */
  render(now) {
    this.list.tick(`api/v1/events?limit=${EVENTS_A_PAGE}`, now);
    const { items, page } = this.list;
    byId("events-section").hidden = !items?.length && page === 1;
    fillTable(byId("events"), (items ?? []).map(eventRow));
  }
}

function eventRow(event) {
  const { id, source, type, subject, time } = event;
  const node = source.split("/").at(-1);
  return [`${source} ${id}`, timeText(Date.parse(time) * 1e6), TYPES[type] ?? type,
    subject && subject !== node ? `${subject} (${node})` : node, dataCell(event)];
}

/** O-RAN's state with the bound, or the text of a finding or an alarm. */
function dataCell({ data }) {
  const [state, metric] = (data.values ?? []).map(({ value }) => String(value));
  if (state !== undefined) return { text: metric ? `${state}, bound ${metric} ns` : state, className: STATE_CLASSES[state] ?? "" };
  if (data.evidence !== undefined) return { text: `${data.id}: ${data.evidence}`, className: "" };
  return { text: [data.action, data.severity, data.text].filter(Boolean).join(" · "), className: "" };
}
