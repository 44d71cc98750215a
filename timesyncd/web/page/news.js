// What is wrong, and what happened: findings with evidence and remedy, and the events that the store holds.

import { Pages } from "./ask.js";
import { byId, fillTable, put } from "./dom.js";
import { moment } from "./model.js";

const SEVERITIES = { critical: "bad", warning: "warn", info: "unknown" };
const RANKS = ["critical", "warning", "info"];
/** Of one kind more than these are one row. */
const FEW = 3;
const ROWS_SHOWN = 30;
const NAMES_SHOWN = 12;

export function renderFindings(findings) {
  byId("no-findings").hidden = findings.size > 0;
  const groups = Map.groupBy([...findings.values()].map(({ data }) => data), ({ id, severity }) => `${severity} ${id}`);
  const rows = [...groups.values()]
    .toSorted(([a], [b]) => RANKS.indexOf(a.severity) - RANKS.indexOf(b.severity))
    .flatMap((alike) => (alike.length > FEW ? [groupRow(alike)] : alike.map(findingRow)));
  fillTable(byId("findings"), rows.slice(0, ROWS_SHOWN));
  put(byId("more-findings"), rows.length > ROWS_SHOWN ? `${rows.length - ROWS_SHOWN} rows more: api/v1/findings has them all` : "");
}

const findingRow = (finding) => row(`${finding.id} ${finding.subject}`, finding, finding.subject, finding.evidence);

/** Many of one kind: how many, whom, and what it looks like on the one that has it longest. */
function groupRow(alike) {
  const names = alike.map(({ subject }) => subject).toSorted();
  const [first] = alike.toSorted((a, b) => a.since_realtime_ns - b.since_realtime_ns);
  const rest = names.length > NAMES_SHOWN ? ` and ${names.length - NAMES_SHOWN} more` : "";
  return row(`${first.id} *`, first, `${names.length} times: ${names.slice(0, NAMES_SHOWN).join(", ")}${rest}`, `First ${first.subject}: ${first.evidence}`);
}

const row = (key, { id, severity, cause, remedy, chain, since_realtime_ns: since }, whom, evidence) => [
  key, { text: `▲ ${severity}`, look: SEVERITIES[severity] }, `${id} · ${whom}`,
  { text: `Since ${moment(since)}. ${evidence}. Cause: ${cause}. Remedy: ${remedy}.`, chain: chain.map((step) => step.text) },
];

/** Words for what most are; others are told by their type. */
const TYPES = {
  "event.sync.sync-status.synchronization-state-change": "node", "event.sync.ptp-status.ptp-state-change": "grandmaster",
  "event.sync.ptp-status.ptp-clock-class-change": "clock class", "event.sync.gnss-status.gnss-state-change": "GNSS",
  "timesyncd.finding.began": "finding began", "timesyncd.finding.changed": "finding changed",
  "timesyncd.finding.ended": "finding is over", "timesyncd.grandmaster.alarm": "alarm",
};
const WORD_LOOKS = { LOCKED: "good", SYNCHRONIZED: "good", HOLDOVER: "warn", FREERUN: "bad" };
const EVENTS_A_PAGE = 25;
const EVENTS_EVERY_MS = 10_000;

export class Events {
  constructor() {
    this.pages = new Pages(EVENTS_EVERY_MS, [byId("events-newer"), byId("events-older")]);
  }

  /** A daemon that keeps no events shows none: no empty box. */
  render(now) {
    this.pages.tick(`api/v1/events?limit=${EVENTS_A_PAGE}`, now);
    const { items, page } = this.pages;
    byId("events-section").hidden = !items?.length && page === 1;
    fillTable(byId("events"), (items ?? []).map(eventRow));
  }
}

function eventRow(event) {
  const { id, source, type, subject, time } = event;
  const node = source.split("/").at(-1);
  return [`${source} ${id}`, moment(Date.parse(time) * 1e6), TYPES[type] ?? type,
    subject && subject !== node ? `${subject} (${node})` : node, told(event)];
}

/** O-RAN's word with the bound beside it, or what our own message says. */
function told({ data }) {
  const [word, metric] = (data.values ?? []).map(({ value }) => String(value));
  if (word !== undefined) return { text: metric ? `${word}, bound ${metric} ns` : word, look: WORD_LOOKS[word] ?? "" };
  if (data.evidence !== undefined) return { text: `${data.id}: ${data.evidence}`, look: "" };
  return { text: [data.action, data.severity, data.text].filter(Boolean).join(" · "), look: "" };
}
