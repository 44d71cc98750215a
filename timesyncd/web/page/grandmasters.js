// The grandmasters: one summary line each, which opens to its details. Those that are not healthy come first and open by themselves.

import { fetchJson } from "./api.js";
import { drawSatellites, drawTimeErrors } from "./chart.js";
import { fillTable, number, put, putChildren } from "./dom.js";
import { alarmClass, bound, duration, durationText, elapsedText, grandmasterNow, roundUp, signed, timeText } from "./model.js";

const STATE_SIGNS = { locked: ["●", "good"], holdover: ["◐", "warn"], acquiring: ["◐", "warn"], warmup: ["◐", "warn"] };
const TIME_ERRORS_EVERY_MS = 300_000;
const MAX_OPEN_AT_FIRST = 2;
const ABSENT = { text: "not provided", className: "quiet" };
const TIME_SOURCES = { 16: "atomic clock", 32: "GNSS", 48: "radio", 64: "PTP", 80: "NTP", 96: "set by hand", 144: "other", 160: "its oscillator" };

const valueCell = (value) => (value === null || value === undefined ? ABSENT : { text: String(value).replaceAll("_", " ") });
const spaced = (value) => value.replaceAll("_", " ");
const yesNo = (flag) => valueCell(flag === null ? null : flag ? "yes" : "no");

export class Grandmasters {
  constructor(box, template) {
    this.box = box;
    this.template = template;
    this.cards = new Map();
  }

  render(entries, now) {
    for (const name of this.cards.keys()) if (!entries.has(name)) this.cards.delete(name);
    const states = [...entries.values()].map(({ data, receivedAt }) => [data, grandmasterNow(data, receivedAt, now)]);
    states.sort(([a, x], [b, y]) => x.isHealthy - y.isHealthy || (a.name < b.name ? -1 : 1));
    const cards = states.map(([grandmaster, state]) => this.card(grandmaster, state, now, entries.size));
    putChildren(this.box, cards.map(({ element }) => element));
  }

  card(grandmaster, state, now, count) {
    let card = this.cards.get(grandmaster.name);
    if (!card) {
      const element = this.template.content.firstElementChild.cloneNode(true);
      card = { element, wasHealthy: true, requestedAt: -Infinity };
      element.open = count <= MAX_OPEN_AT_FIRST;
      this.cards.set(grandmaster.name, card);
    }
    if (card.wasHealthy && !state.isHealthy) card.element.open = true;
    card.wasHealthy = state.isHealthy;
    renderSummary(card.element, grandmaster, state);
    if (card.element.open) renderDetails(card, grandmaster, state, now);
    return card;
  }
}

const field = (element, name) => element.querySelector(`[data-field="${name}"]`);
const rows = (element, name) => element.querySelector(`[data-rows="${name}"]`);

function renderSummary(element, grandmaster, state) {
  const [sign, className] = grandmaster.reachable ? STATE_SIGNS[grandmaster.clock_state] ?? ["✕", "bad"] : ["✕", "bad"];
  const snmpError = snmpErrorOf(grandmaster);
  const name = grandmaster.reachable ? spaced(grandmaster.clock_state ?? (snmpError ? "state not read" : "state not provided")).toUpperCase() : "UNREACHABLE";
  put(field(element, "state"), `${sign} ${name}`, grandmaster.reachable && grandmaster.clock_state === null ? "unknown" : className);
  put(field(element, "name"), grandmaster.name);
  put(field(element, "model"), [grandmaster.model, grandmaster.clock_identity ?? grandmaster.identities[0]].filter(Boolean).join(" · "));
  put(field(element, "since"), state.inStateNs === null || !grandmaster.reachable ? "" : `since ${timeText(grandmaster.clock_state_since_realtime_ns)}, ${durationText(state.inStateNs / 1e6)}`);
  put(field(element, "utc-line"), state.utcNs === null ? "UTC error: no bound" : `UTC ${bound(state.utcNs)}`, state.utcNs === null ? "warn" : "");
  put(field(element, "gnss-line"), gnss(grandmaster));
  put(field(element, "alarms-line"), ...alarmsLine(grandmaster));
  put(field(element, "polled"), state.ageNs === null ? "never polled" : `polled ${elapsedText(state.ageNs / 1e6)} ago`);
  put(field(element, "reason"), grandmaster.reachable ? snmpError ?? "" : `${grandmaster.reason ?? "no reply"}; the values below are the last known`);
}

/** Why the daemon could not read the state by SNMP, for a grandmaster whose web interface alone replies. */
const snmpErrorOf = (grandmaster) => (grandmaster.clock_state === null ? grandmaster.snmp_error : null);

function gnss(grandmaster) {
  if (grandmaster.satellites === null) return grandmaster.gnss_state === null ? "" : `GNSS ${spaced(grandmaster.gnss_state)}`;
  const healthy = grandmaster.satellites.filter((satellite) => satellite.healthy === true).length;
  return `GNSS ${spaced(grandmaster.gnss_state ?? "")} ${healthy}/${grandmaster.satellites.length} satellites`.replace("  ", " ");
}

function alarmsLine({ alarms }) {
  if (alarms === null) return ["alarms not provided", "quiet"];
  if (alarms.length === 0) return ["no alarm", "quiet"];
  const worst = alarms.find((alarm) => alarmClass(alarm.severity) === "bad") ?? alarms[0];
  return [`▲ ${alarms.length} alarm${alarms.length > 1 ? "s" : ""}`, alarmClass(worst.severity)];
}

function renderDetails(card, grandmaster, state, now) {
  const { element } = card;
  renderBudget(element, grandmaster, state);
  renderGnss(element, grandmaster);
  list(element, "alarms", grandmaster.alarms, "none", ({ id, index, severity, text, since }) => [
    `${id} ${index}`, { text: `▲ ${severity}`, className: alarmClass(severity) }, text, { text: since ?? "", className: "quiet" }]);
  list(element, "references", grandmaster.references, "none", ({ name, qualification }) => [
    name, name === grandmaster.selected_reference || qualification === "selected" ? `● ${name}` : name,
    { text: qualification, className: qualification === "selected" ? "good" : qualification === "disqualified" ? "warn" : "quiet" }]);
  list(element, "ports", grandmaster.ports, "none", portRow);
  list(element, "sensors", grandmaster.sensors, "none", ({ name, value, unit, ok }) => [
    name, name, number(value === null ? "" : `${Number(value.toFixed(2))} ${unit ?? ""}`),
    ok === null ? { text: "not rated", className: "quiet" } : ok ? { text: "● good", className: "good" } : { text: "✕ bad", className: "bad" }]);
  list(element, "interfaces", grandmaster.interfaces, "none", ({ name, up, speed_mbps: speed }) => [
    name, name, up === null ? ABSENT : up ? { text: "● up", className: "good" } : { text: "✕ down", className: "warn" },
    number(speed === null ? "" : `${speed} Mbit/s`)]);
  renderTimeErrors(card, grandmaster, now);
  fillTable(rows(element, "clock"), facts(clockFacts(grandmaster)));
  fillTable(rows(element, "inventory"), facts(inventory(grandmaster)));
}

function list(element, name, items, none, row) {
  const shown = items === null ? [["-", ABSENT]] : items.length === 0 ? [["-", { text: none, className: "quiet" }]] : items.map(row);
  fillTable(rows(element, name), unique(shown));
}

/** Makes the keys of rows unique: a grandmaster may give two rows one name. */
const unique = (shown) => shown.map(([key, ...cells], at) => [`${at} ${key}`, ...cells]);

/** One row per fact. A last row names what the grandmaster does not provide. */
function facts(pairs) {
  const absent = pairs.filter(([, value]) => value === ABSENT).map(([name]) => name);
  const shown = pairs.filter(([, value]) => value !== ABSENT).map(([name, value]) => [name, { text: name, className: "key" }, value]);
  return absent.length === 0 ? shown : [...shown, ["-", { text: ABSENT.text, className: "key" }, { text: absent.join(", "), className: "quiet" }]];
}

function renderBudget(element, grandmaster, state) {
  const growth = grandmaster.utc?.growth_ppb ? `, growing ${duration(grandmaster.utc.growth_ppb * 3600, roundUp)} per hour` : "";
  put(field(element, "utc"), state.utcNs === null ? "no bound" : bound(state.utcNs));
  put(field(element, "utc-why"), state.utcNs === null ? grandmaster.utc?.reason || "not computed" : `against UTC${growth}`);
  const bar = field(element, "budget");
  bar.hidden = state.leftNs === null;
  bar.className = state.usedShare > 0.8 ? "budget bad" : state.usedShare > 0.5 ? "budget warn" : "budget";
  bar.firstElementChild.style.width = `${((1 - (state.usedShare ?? 0)) * 100).toFixed(1)}%`;
  put(field(element, "left"), leftText(grandmaster, state));
  put(field(element, "invalidation"), grandmaster.invalid_before_realtime_ns === null ? ""
    : `measurements before ${timeText(grandmaster.invalid_before_realtime_ns)} are invalid: ${grandmaster.invalidation_reason ?? ""}`);
  fillTable(rows(element, "offsets"), grandmaster.offsets.map(({ other, offset_ns: offset, bound_ns: width, evidence }) => [
    other, `to ${other}`, number(`${signed(offset)} ${bound(width)}`), { text: evidence, className: "quiet" }]));
}

function leftText(grandmaster, { leftNs, usedShare }) {
  if (leftNs === 0) return "the holdover budget is exhausted";
  if (leftNs !== null) return `holdover budget left: ${durationText(leftNs / 1e6)}${usedShare === null ? "" : ` (${((1 - usedShare) * 100).toFixed(0)} %)`}`;
  return grandmaster.clock_state?.startsWith("holdover") ? "no holdover budget" : "";
}

function renderGnss(element, grandmaster) {
  fillTable(rows(element, "gnss"), facts([
    ["receiver", valueCell(grandmaster.gnss_state)],
    ["antenna", grandmaster.antenna === null ? ABSENT : { text: grandmaster.antenna, className: grandmaster.antenna === "ok" ? "good" : "bad" }],
    ["satellites", valueCell(grandmaster.satellites === null ? null : gnss({ ...grandmaster, gnss_state: null }).replace("GNSS ", "").replace("satellites", "healthy"))],
    ["position", valueCell(grandmaster.position && place(grandmaster.position))],
    ["position mode", valueCell(grandmaster.gnss_position_mode)],
  ]));
  const sky = element.querySelector(".sky");
  element.querySelector(".sky-figure").toggleAttribute("hidden", !grandmaster.satellites?.length);
  const drawn = JSON.stringify(grandmaster.satellites);
  if (grandmaster.satellites?.length && sky.dataset.drawn !== drawn) {
    drawSatellites(sky, grandmaster.satellites);
    sky.dataset.drawn = drawn;
  }
}

const place = ({ latitude_deg: north, longitude_deg: east, height_m: height }) =>
  `${north.toFixed(5)}, ${east.toFixed(5)}${height === null ? "" : `, ${height.toFixed(1)} m`}`;

function portRow({ name, state, enabled, profile, domain, clients, max_clients: most, client_load_percent: load }) {
  const clientsText = clients === null ? "not provided" : `${clients}${most === null ? "" : ` of ${most}`} clients`;
  return [
    name, name, state === null ? enabled === null ? ABSENT : enabled ? "enabled" : "disabled" : spaced(state),
    { text: [profile, domain === null ? null : `domain ${domain}`].filter((part) => part !== null).join(", "), className: "quiet" },
    most > 0 && clients !== null ? { text: clientsText, bar: clients / most } : { text: clientsText, className: clients === null ? "quiet" : "" },
    load === null ? { text: "", className: "" } : { text: `load ${load} %`, className: load >= 90 ? "bad" : load >= 75 ? "warn" : "" },
  ];
}

function renderTimeErrors(card, grandmaster, now) {
  const { element } = card;
  list(element, "time-errors", grandmaster.time_errors, "none", (error) => [
    `${error.channel} ${error.metric}`, error.channel, error.metric,
    { text: signed(error.value_ns), className: Math.abs(error.value_ns) > (error.alarm_threshold_ns ?? Infinity) ? "number bad" : "number" },
    { text: [error.reference && `to ${error.reference}`, error.status].filter(Boolean).join(", "), className: "quiet" }]);
  if (now - card.requestedAt > TIME_ERRORS_EVERY_MS) {
    card.requestedAt = now;
    loadTimeErrors(card, grandmaster);
  }
}

/** Draws the last day of time errors from the daemon's store; a daemon without a store has none. */
async function loadTimeErrors(card, grandmaster) {
  const body = await fetchJson(`api/v1/grandmasters/${encodeURIComponent(grandmaster.name)}/time-errors`);
  const steps = (body?.items ?? []).filter(({ metric }) => metric === "te");
  const channels = [...new Set(steps.map(({ channel }) => channel))];
  putChildren(field(card.element, "time-error-charts"), channels.map((channel) => timeErrorFigure(channel, steps.filter((step) => step.channel === channel), grandmaster)));
}

function timeErrorFigure(channel, steps, grandmaster) {
  const figure = document.getElementById("time-error-template").content.firstElementChild.cloneNode(true);
  const threshold = grandmaster.time_errors?.find((error) => error.channel === channel && error.metric === "te")?.alarm_threshold_ns;
  drawTimeErrors(figure.firstElementChild, steps, threshold ?? null);
  const [low, high] = [Math.min(...steps.map((s) => s.lowest_ns)), Math.max(...steps.map((s) => s.highest_ns))];
  put(figure.lastElementChild, `${channel}, last ${durationText((steps.at(-1).realtime_ns - steps[0].realtime_ns) / 1e6)}: ${signed(low)} to ${signed(high)}`);
  return figure;
}

const clockFacts = (grandmaster) => [
  ["class", valueCell(grandmaster.clock_class)],
  ["accuracy", valueCell(grandmaster.clock_accuracy === null ? null : `0x${grandmaster.clock_accuracy.toString(16)}`)],
  ["variance", valueCell(grandmaster.offset_scaled_log_variance === null ? null : `0x${grandmaster.offset_scaled_log_variance.toString(16)}`)],
  ["phase to its reference", valueCell(grandmaster.phase_offset_ns === null ? null : signed(grandmaster.phase_offset_ns))],
  ["priorities", valueCell(grandmaster.priority1 === null && grandmaster.priority2 === null ? null : `${grandmaster.priority1 ?? "?"}, ${grandmaster.priority2 ?? "?"}`)],
  ["domain", valueCell(grandmaster.domain)],
  ["time source", valueCell(TIME_SOURCES[grandmaster.time_source] ?? grandmaster.time_source)],
  ["TAI − UTC", valueCell(grandmaster.utc_offset_s === null ? null : `${grandmaster.utc_offset_s} s`)],
  ["leap second", ["insert", "delete", "both"].includes(grandmaster.leap) ? { text: `▲ ${grandmaster.leap} announced`, className: "warn" } : valueCell(grandmaster.leap)],
  ["time traceable", yesNo(grandmaster.time_traceable)],
  ["frequency traceable", yesNo(grandmaster.frequency_traceable)],
  ["steps removed", valueCell(grandmaster.steps_removed)],
  ["NTP", valueCell(ntp(grandmaster))],
];

const ntp = (grandmaster) => [grandmaster.ntp_mode, grandmaster.ntp_stratum === null ? null : `stratum ${grandmaster.ntp_stratum}`, grandmaster.ntp_leap && `leap ${grandmaster.ntp_leap}`]
  .filter((part) => part !== null).join(", ") || null;

const inventory = (grandmaster) => [
  ["model", valueCell(grandmaster.model)], ["serial", valueCell(grandmaster.serial)], ["firmware", valueCell(grandmaster.firmware)], ["oscillator", valueCell(grandmaster.oscillator)],
  ["up for", valueCell(grandmaster.uptime_s === null ? null : durationText(grandmaster.uptime_s * 1e3))], ["engine boots", valueCell(grandmaster.engine_boots)],
  ["name", valueCell(grandmaster.sys_name)], ["description", valueCell(grandmaster.sys_descr)], ["object id", valueCell(grandmaster.sys_object_id)],
  ["identities", valueCell(grandmaster.identities.join(", ") || null)], ["profiles", valueCell(grandmaster.profiles.join(", ") || null)],
  ["not recognized", valueCell(grandmaster.unknown.join(", ") || "nothing")], ["polled by", valueCell(grandmaster.node)],
];
