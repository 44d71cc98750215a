// Grandmasters: a line each, and below it a card to look at; those in trouble come first and stand open.

import { ask } from "./ask.js";
import { drawCourse, drawSatellites } from "./chart.js";
import { fillTable, number, put, putChildren } from "./dom.js";
import { alarmLook, bound, duration, lasts, moment, signed, span, unitNow } from "./model.js";

const STATE_SIGNS = { locked: ["●", "good"], holdover: ["◐", "warn"], acquiring: ["◐", "warn"], warmup: ["◐", "warn"] };
const COURSE_EVERY_MS = 300_000;
const FEW_UNITS = 2;
const ABSENT = { text: "not provided", look: "quiet" };
const TIME_SOURCES = { 16: "atomic clock", 32: "GNSS", 48: "radio", 64: "PTP", 80: "NTP", 96: "hand set", 144: "other", 160: "its oscillator" };

const told = (value) => (value === null || value === undefined ? ABSENT : { text: String(value).replaceAll("_", " ") });
const words = (value) => value.replaceAll("_", " ");
const yesNo = (flag) => told(flag === null ? null : flag ? "yes" : "no");

export class Units {
  constructor(box, template) {
    this.box = box;
    this.template = template;
    this.cards = new Map();
  }

  render(entries, now) {
    for (const name of this.cards.keys()) if (!entries.has(name)) this.cards.delete(name);
    const states = [...entries.values()].map(({ data, heardAt }) => [data, unitNow(data, heardAt, now)]);
    states.sort(([a, x], [b, y]) => x.isFine - y.isFine || (a.name < b.name ? -1 : 1));
    const cards = states.map(([unit, state]) => this.card(unit, state, now, entries.size));
    putChildren(this.box, cards.map(({ element }) => element));
  }

  card(unit, state, now, count) {
    let card = this.cards.get(unit.name);
    if (!card) {
      const element = this.template.content.firstElementChild.cloneNode(true);
      card = { element, wasFine: true, courses: new Map(), askedAt: -Infinity };
      element.open = count <= FEW_UNITS;
      this.cards.set(unit.name, card);
    }
    if (card.wasFine && !state.isFine) card.element.open = true;
    card.wasFine = state.isFine;
    renderLine(card.element, unit, state);
    if (card.element.open) renderCard(card, unit, state, now);
    return card;
  }
}

const field = (element, name) => element.querySelector(`[data-field="${name}"]`);
const rows = (element, name) => element.querySelector(`[data-rows="${name}"]`);

function renderLine(element, unit, state) {
  const [sign, look] = unit.reachable ? STATE_SIGNS[unit.clock_state] ?? ["✕", "bad"] : ["✕", "bad"];
  const trouble = snmpTrouble(unit);
  const name = unit.reachable ? words(unit.clock_state ?? (trouble ? "state not read" : "state not provided")).toUpperCase() : "UNREACHABLE";
  put(field(element, "state"), `${sign} ${name}`, unit.reachable && unit.clock_state === null ? "unknown" : look);
  put(field(element, "name"), unit.name);
  put(field(element, "model"), [unit.model, unit.clock_identity ?? unit.identities[0]].filter(Boolean).join(" · "));
  put(field(element, "since"), state.lastingNs === null || !unit.reachable ? "" : `since ${moment(unit.clock_state_since_realtime_ns)}, ${lasts(state.lastingNs / 1e6)}`);
  put(field(element, "utc-line"), state.utcNs === null ? "UTC error: no bound" : `UTC ${bound(state.utcNs)}`, state.utcNs === null ? "warn" : "");
  put(field(element, "gnss-line"), gnss(unit));
  put(field(element, "alarms-line"), ...alarmsLine(unit));
  put(field(element, "heard"), state.ageNs === null ? "never heard" : `heard ${span(state.ageNs / 1e6)} ago`);
  put(field(element, "reason"), unit.reachable ? trouble ?? "" : `${unit.reason ?? "no answer"}; below is what was last known`);
}

/** Why there is no state, where the unit's web interface alone answers. */
const snmpTrouble = (unit) => unit.clock_state === null ? unit.unknown.find((note) => note.startsWith("snmp="))?.slice(5) : undefined;

function gnss(unit) {
  if (unit.satellites === null) return unit.gnss_state === null ? "" : `GNSS ${words(unit.gnss_state)}`;
  const healthy = unit.satellites.filter((satellite) => satellite.healthy === true).length;
  return `GNSS ${words(unit.gnss_state ?? "")} ${healthy}/${unit.satellites.length} satellites`.replace("  ", " ");
}

function alarmsLine({ alarms }) {
  if (alarms === null) return ["alarms not provided", "quiet"];
  if (alarms.length === 0) return ["no alarm", "quiet"];
  const worst = alarms.find((alarm) => alarmLook(alarm.severity) === "bad") ?? alarms[0];
  return [`▲ ${alarms.length} alarm${alarms.length > 1 ? "s" : ""}`, alarmLook(worst.severity)];
}

function renderCard(card, unit, state, now) {
  const { element } = card;
  renderBudget(element, unit, state);
  renderGnss(element, unit);
  list(element, "alarms", unit.alarms, "none", ({ id, index, severity, text, since }) => [
    `${id} ${index}`, { text: `▲ ${severity}`, look: alarmLook(severity) }, text, { text: since ?? "", look: "quiet" }]);
  list(element, "references", unit.references, "none", ({ name, qualification }) => [
    name, name === unit.selected_reference || qualification === "selected" ? `● ${name}` : name,
    { text: qualification, look: qualification === "selected" ? "good" : qualification === "disqualified" ? "warn" : "quiet" }]);
  list(element, "ports", unit.ports, "none", portRow);
  list(element, "sensors", unit.sensors, "none", ({ name, value, unit: of, ok }) => [
    name, name, number(value === null ? "" : `${Number(value.toFixed(2))} ${of ?? ""}`),
    ok === null ? { text: "not rated", look: "quiet" } : ok ? { text: "● good", look: "good" } : { text: "✕ bad", look: "bad" }]);
  list(element, "interfaces", unit.interfaces, "none", ({ name, up, speed_mbps: speed }) => [
    name, name, up === null ? ABSENT : up ? { text: "● up", look: "good" } : { text: "✕ down", look: "warn" },
    number(speed === null ? "" : `${speed} Mbit/s`)]);
  renderTimeErrors(card, unit, now);
  fillTable(rows(element, "clock"), facts(clockFacts(unit)));
  fillTable(rows(element, "inventory"), facts(inventory(unit)));
}

function list(element, name, items, none, row) {
  const shown = items === null ? [["-", ABSENT]] : items.length === 0 ? [["-", { text: none, look: "quiet" }]] : items.map(row);
  fillTable(rows(element, name), unique(shown));
}

/** A unit may give two rows one name: each is shown. */
const unique = (shown) => shown.map(([key, ...cells], at) => [`${at} ${key}`, ...cells]);

/** A row a fact; what the unit does not provide is one row at the end, and said as that. */
function facts(pairs) {
  const absent = pairs.filter(([, value]) => value === ABSENT).map(([name]) => name);
  const shown = pairs.filter(([, value]) => value !== ABSENT).map(([name, value]) => [name, { text: name, look: "key" }, value]);
  return absent.length === 0 ? shown : [...shown, ["-", { text: ABSENT.text, look: "key" }, { text: absent.join(", "), look: "quiet" }]];
}

function renderBudget(element, unit, state) {
  const growth = unit.utc?.growth_ppb ? `, growing ${duration(unit.utc.growth_ppb * 3600)} an hour` : "";
  put(field(element, "utc"), state.utcNs === null ? "no bound" : bound(state.utcNs));
  put(field(element, "utc-why"), state.utcNs === null ? unit.utc?.reason || "not judged" : `against UTC${growth}`);
  const bar = field(element, "budget");
  bar.hidden = state.leftNs === null;
  bar.className = state.used > 0.8 ? "budget bad" : state.used > 0.5 ? "budget warn" : "budget";
  bar.firstElementChild.style.width = `${((1 - (state.used ?? 0)) * 100).toFixed(1)}%`;
  put(field(element, "left"), leftText(unit, state));
  put(field(element, "void"), unit.void_before_realtime_ns === null ? ""
    : `measurements before ${moment(unit.void_before_realtime_ns)} are void: ${unit.void_reason ?? ""}`);
  fillTable(rows(element, "offsets"), unit.offsets.map(({ other, offset_ns: offset, bound_ns: width, evidence }) => [
    other, `to ${other}`, number(`${signed(offset)} ${bound(width)}`), { text: evidence, look: "quiet" }]));
}

function leftText(unit, { leftNs, used }) {
  if (leftNs === 0) return "the holdover budget is used up";
  if (leftNs !== null) return `holdover budget left: ${lasts(leftNs / 1e6)}${used === null ? "" : ` (${((1 - used) * 100).toFixed(0)} %)`}`;
  return unit.clock_state?.startsWith("holdover") ? "no holdover budget" : "";
}

function renderGnss(element, unit) {
  fillTable(rows(element, "gnss"), facts([
    ["receiver", told(unit.gnss_state)],
    ["antenna", unit.antenna === null ? ABSENT : { text: unit.antenna, look: unit.antenna === "ok" ? "good" : "bad" }],
    ["satellites", told(unit.satellites === null ? null : gnss({ ...unit, gnss_state: null }).replace("GNSS ", "").replace("satellites", "healthy"))],
    ["position", told(unit.position && place(unit.position))],
    ["position mode", told(unit.gnss_position_mode)],
  ]));
  const sky = element.querySelector(".sky");
  element.querySelector(".sky-figure").toggleAttribute("hidden", !unit.satellites?.length);
  const drawn = JSON.stringify(unit.satellites);
  if (unit.satellites?.length && sky.dataset.drawn !== drawn) {
    drawSatellites(sky, unit.satellites);
    sky.dataset.drawn = drawn;
  }
}

const place = ({ latitude_deg: north, longitude_deg: east, height_m: height }) =>
  `${north.toFixed(5)}, ${east.toFixed(5)}${height === null ? "" : `, ${height.toFixed(1)} m`}`;

function portRow({ name, state, enabled, profile, domain, clients, max_clients: most, client_load_percent: load }) {
  const clientsText = clients === null ? "not provided" : `${clients}${most === null ? "" : ` of ${most}`} clients`;
  return [
    name, name, state === null ? enabled === null ? ABSENT : enabled ? "enabled" : "disabled" : words(state),
    { text: [profile, domain === null ? null : `domain ${domain}`].filter((part) => part !== null).join(", "), look: "quiet" },
    most > 0 && clients !== null ? { text: clientsText, bar: clients / most } : { text: clientsText, look: clients === null ? "quiet" : "" },
    load === null ? { text: "", look: "" } : { text: `load ${load} %`, look: load >= 90 ? "bad" : load >= 75 ? "warn" : "" },
  ];
}

function renderTimeErrors(card, unit, now) {
  const { element } = card;
  list(element, "time-errors", unit.time_errors, "none", (error) => [
    `${error.channel} ${error.metric}`, error.channel, error.metric,
    { text: signed(error.value_ns), look: Math.abs(error.value_ns) > (error.alarm_threshold_ns ?? Infinity) ? "number bad" : "number" },
    { text: [error.reference && `to ${error.reference}`, error.status].filter(Boolean).join(", "), look: "quiet" }]);
  if (now - card.askedAt > COURSE_EVERY_MS) {
    card.askedAt = now;
    askCourse(card, unit);
  }
}

/** The day that the daemon's store holds; a daemon without a store has none. */
async function askCourse(card, unit) {
  const answer = await ask(`api/v1/grandmasters/${encodeURIComponent(unit.name)}/time-errors`);
  const steps = (answer?.items ?? []).filter(({ metric }) => metric === "te");
  const channels = [...new Set(steps.map(({ channel }) => channel))];
  putChildren(field(card.element, "courses"), channels.map((channel) => courseFigure(channel, steps.filter((step) => step.channel === channel), unit)));
}

function courseFigure(channel, steps, unit) {
  const figure = document.getElementById("course-template").content.firstElementChild.cloneNode(true);
  const threshold = unit.time_errors?.find((error) => error.channel === channel && error.metric === "te")?.alarm_threshold_ns;
  drawCourse(figure.firstElementChild, steps, threshold ?? null);
  const [low, high] = [Math.min(...steps.map((s) => s.lowest_ns)), Math.max(...steps.map((s) => s.highest_ns))];
  put(figure.lastElementChild, `${channel}, last ${lasts((steps.at(-1).realtime_ns - steps[0].realtime_ns) / 1e6)}: ${signed(low)} to ${signed(high)}`);
  return figure;
}

const clockFacts = (unit) => [
  ["class", told(unit.clock_class)],
  ["accuracy", told(unit.clock_accuracy === null ? null : `0x${unit.clock_accuracy.toString(16)}`)],
  ["variance", told(unit.offset_scaled_log_variance === null ? null : `0x${unit.offset_scaled_log_variance.toString(16)}`)],
  ["phase to its reference", told(unit.phase_offset_ns === null ? null : signed(unit.phase_offset_ns))],
  ["priorities", told(unit.priority1 === null && unit.priority2 === null ? null : `${unit.priority1 ?? "?"}, ${unit.priority2 ?? "?"}`)],
  ["domain", told(unit.domain)],
  ["time source", told(TIME_SOURCES[unit.time_source] ?? unit.time_source)],
  ["TAI − UTC", told(unit.utc_offset_s === null ? null : `${unit.utc_offset_s} s`)],
  ["leap second", unit.leap === "insert" || unit.leap === "delete" ? { text: `▲ ${unit.leap} at the end of the day`, look: "warn" } : told(unit.leap)],
  ["time traceable", yesNo(unit.time_traceable)],
  ["frequency traceable", yesNo(unit.frequency_traceable)],
  ["steps removed", told(unit.steps_removed)],
  ["NTP", told(ntp(unit))],
];

const ntp = (unit) => [unit.ntp_mode, unit.ntp_stratum === null ? null : `stratum ${unit.ntp_stratum}`, unit.ntp_leap && `leap ${unit.ntp_leap}`]
  .filter((part) => part !== null).join(", ") || null;

const inventory = (unit) => [
  ["model", told(unit.model)], ["serial", told(unit.serial)], ["firmware", told(unit.firmware)], ["oscillator", told(unit.oscillator)],
  ["up for", told(unit.uptime_s === null ? null : lasts(unit.uptime_s * 1e3))], ["engine boots", told(unit.engine_boots)],
  ["name", told(unit.sys_name)], ["description", told(unit.sys_descr)], ["object id", told(unit.sys_object_id)],
  ["identities", told(unit.identities.join(", ") || null)], ["profiles", told(unit.profiles.join(", ") || null)],
  ["not understood", told(unit.unknown.join(", ") || "nothing")], ["polled by", told(unit.node)],
];
