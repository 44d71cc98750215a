// The grandmasters as texts and tables: one summary line each, which opens to its details. Those that are not healthy come first and open by themselves.

import { fillTable, number, put, putChildren, svg, type Cell, type Row } from "../dom.ts";
import { alarmClass, bound, duration, durationText, elapsedText, grandmasterNow, roundUp, signed, type Entry, type GrandmasterNow } from "../model.ts";
import { at, place } from "../place.ts";
import type { Alarm, Grandmaster, Port, Satellite } from "../types.ts";

interface Card {
  element: HTMLDetailsElement;
  wasHealthy: boolean;
}

export const STATE_SIGNS: Record<string, [string, string]> = { locked: ["●", "good"], holdover: ["◐", "warn"], acquiring: ["◐", "warn"], warmup: ["◐", "warn"] };
const MAX_OPEN_AT_FIRST = 2;
const ABSENT: Cell = { text: "not provided", className: "quiet" };
const TIME_SOURCES: Record<number, string> = { 16: "atomic clock", 32: "GNSS", 48: "radio", 64: "PTP", 80: "NTP", 96: "set by hand", 144: "other", 160: "its oscillator" };

const valueCell = (value: string | number | null | undefined): Cell => (value === null || value === undefined ? ABSENT : { text: String(value).replaceAll("_", " ") });
export const spaced = (value: string): string => value.replaceAll("_", " ");
const yesNo = (flag: boolean | null): Cell => valueCell(flag === null ? null : flag ? "yes" : "no");

export class Grandmasters {
  private readonly cards = new Map<string, Card>();

  constructor(private readonly box: HTMLElement, private readonly template: HTMLTemplateElement) {}

  render(entries: Map<string, Entry<Grandmaster>>, now: number): void {
    for (const name of this.cards.keys()) if (!entries.has(name)) this.cards.delete(name);
    const states = [...entries.values()].map(({ data, receivedAt }): [Grandmaster, GrandmasterNow] => [data, grandmasterNow(data, receivedAt, now)]);
    states.sort(([a, x], [b, y]) => Number(x.isHealthy) - Number(y.isHealthy) || (a.name < b.name ? -1 : 1));
    const cards = states.map(([grandmaster, state]) => this.card(grandmaster, state, entries.size));
    putChildren(this.box, cards.map(({ element }) => element));
  }

  private card(grandmaster: Grandmaster, state: GrandmasterNow, count: number): Card {
    let card = this.cards.get(grandmaster.name);
    if (!card) {
      const element = this.template.content.firstElementChild?.cloneNode(true) as HTMLDetailsElement;
      card = { element, wasHealthy: true };
      element.open = count <= MAX_OPEN_AT_FIRST;
      this.cards.set(grandmaster.name, card);
    }
    if (card.wasHealthy && !state.isHealthy) card.element.open = true;
    card.wasHealthy = state.isHealthy;
    renderSummary(card.element, grandmaster, state);
    if (card.element.open) renderDetails(card, grandmaster, state);
    return card;
  }
}

const field = (element: HTMLElement, name: string): HTMLElement => element.querySelector(`[data-field="${name}"]`) as HTMLElement;
const rows = (element: HTMLElement, name: string): HTMLElement => element.querySelector(`[data-rows="${name}"]`) as HTMLElement;

function renderSummary(element: HTMLElement, grandmaster: Grandmaster, state: GrandmasterNow): void {
  const [sign, className] = grandmaster.reachable ? STATE_SIGNS[grandmaster.clock_state ?? ""] ?? ["✕", "bad"] : ["✕", "bad"];
  const snmpError = snmpErrorOf(grandmaster);
  const name = grandmaster.reachable ? spaced(grandmaster.clock_state ?? (snmpError ? "state not read" : "state not provided")).toUpperCase() : "UNREACHABLE";
  put(field(element, "state"), `${sign} ${name}`, grandmaster.reachable && grandmaster.clock_state === null ? "unknown" : className);
  put(field(element, "name"), grandmaster.name);
  (field(element, "link") as HTMLAnchorElement).href = place.link("grandmaster", grandmaster.name);
  put(field(element, "model"), [grandmaster.model, grandmaster.clock_identity ?? grandmaster.identities[0]].filter(Boolean).join(" · "));
  put(field(element, "since"), state.inStateNs === null || !grandmaster.reachable ? "" : `since ${at(grandmaster.clock_state_since_realtime_ns ?? 0)}, ${durationText(state.inStateNs / 1e6)}`);
  put(field(element, "utc-line"), state.utcNs === null ? "UTC error: no bound" : `UTC ${bound(state.utcNs)}`, state.utcNs === null ? "warn" : "");
  put(field(element, "gnss-line"), gnss(grandmaster));
  put(field(element, "alarms-line"), ...alarmsLine(grandmaster));
  put(field(element, "polled"), state.ageNs === null ? "never polled" : `polled ${elapsedText(state.ageNs / 1e6)} ago`);
  put(field(element, "reason"), grandmaster.reachable ? snmpError ?? "" : `${grandmaster.reason ?? "no reply"}; the values below are the last known`);
}

/** Why the daemon could not read the state by SNMP, for a grandmaster whose web interface alone replies. */
export const snmpErrorOf = (grandmaster: Grandmaster): string | null => (grandmaster.clock_state === null ? grandmaster.snmp_error : null);

export function gnss(grandmaster: Pick<Grandmaster, "satellites" | "gnss_state">): string {
  if (grandmaster.satellites === null) return grandmaster.gnss_state === null ? "" : `GNSS ${spaced(grandmaster.gnss_state)}`;
  const healthy = grandmaster.satellites.filter((satellite) => satellite.healthy === true).length;
  return `GNSS ${spaced(grandmaster.gnss_state ?? "")} ${healthy}/${grandmaster.satellites.length} satellites`.replace("  ", " ");
}

function alarmsLine({ alarms }: Grandmaster): [string, string] {
  if (alarms === null) return ["alarms not provided", "quiet"];
  if (alarms.length === 0) return ["no alarm", "quiet"];
  const worst = alarms.find((alarm) => alarmClass(alarm.severity) === "bad") ?? (alarms[0] as Alarm);
  return [`▲ ${alarms.length} alarm${alarms.length > 1 ? "s" : ""}`, alarmClass(worst.severity)];
}

function renderDetails({ element }: Card, grandmaster: Grandmaster, state: GrandmasterNow): void {
  renderBudget(element, grandmaster, state);
  renderGnss(element, grandmaster);
  list(element, "alarms", grandmaster.alarms, "none", ({ id, index, severity, text, since }) => [
    `${id} ${index}`, { text: `▲ ${severity}`, className: alarmClass(severity) }, text, { text: (since ?? "").replace(",", " "), className: "quiet" }]);
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
  renderTimeErrors(element, grandmaster);
  fillTable(rows(element, "clock"), facts(clockFacts(grandmaster)));
  fillTable(rows(element, "inventory"), facts(inventory(grandmaster)));
}

function list<T>(element: HTMLElement, name: string, items: T[] | null, none: string, row: (item: T) => Row): void {
  const shown: Row[] = items === null ? [["-", ABSENT]] : items.length === 0 ? [["-", { text: none, className: "quiet" }]] : items.map(row);
  fillTable(rows(element, name), unique(shown));
}

/** Makes the keys of rows unique: a grandmaster may give two rows one name. */
const unique = (shown: Row[]): Row[] => shown.map(([key, ...cells], index) => [`${index} ${key}`, ...cells]);

/** One row per fact. A last row names what the grandmaster does not provide. */
function facts(pairs: [string, Cell][]): Row[] {
  const absent = pairs.filter(([, value]) => value === ABSENT).map(([name]) => name);
  const shown = pairs.filter(([, value]) => value !== ABSENT).map(([name, value]): Row => [name, { text: name, className: "key" }, value]);
  return absent.length === 0 ? shown : [...shown, ["-", { text: ABSENT.text, className: "key" }, { text: absent.join(", "), className: "quiet" }]];
}

function renderBudget(element: HTMLElement, grandmaster: Grandmaster, state: GrandmasterNow): void {
  const growth = grandmaster.utc?.growth_ppb ? `, growing ${duration(grandmaster.utc.growth_ppb * 3600, roundUp)} per hour` : "";
  put(field(element, "utc"), state.utcNs === null ? "no bound" : bound(state.utcNs));
  put(field(element, "utc-why"), state.utcNs === null ? grandmaster.utc?.reason || "not computed" : `against UTC${growth}`);
  const bar = field(element, "budget");
  bar.hidden = state.leftNs === null;
  bar.className = (state.usedShare ?? 0) > 0.8 ? "budget bad" : (state.usedShare ?? 0) > 0.5 ? "budget warn" : "budget";
  (bar.firstElementChild as HTMLElement).style.width = `${((1 - (state.usedShare ?? 0)) * 100).toFixed(1)}%`;
  put(field(element, "left"), leftText(grandmaster, state));
  put(field(element, "invalidation"), grandmaster.invalid_before_realtime_ns === null ? ""
    : `measurements before ${at(grandmaster.invalid_before_realtime_ns)} are invalid: ${grandmaster.invalidation_reason ?? ""}`);
  fillTable(rows(element, "offsets"), grandmaster.offsets.map(({ other, offset_ns: offset, bound_ns: width, evidence }) => [
    other, `to ${other}`, number(`${signed(offset)} ${bound(width)}`), { text: evidence, className: "quiet" }]));
}

export function leftText(grandmaster: Grandmaster, { leftNs, usedShare }: GrandmasterNow): string {
  if (leftNs === 0) return "the holdover budget is exhausted";
  if (leftNs !== null) return `holdover budget left: ${durationText(leftNs / 1e6)}${usedShare === null ? "" : ` (${((1 - usedShare) * 100).toFixed(0)} %)`}`;
  return grandmaster.clock_state?.startsWith("holdover") ? "no holdover budget" : "";
}

function renderGnss(element: HTMLElement, grandmaster: Grandmaster): void {
  fillTable(rows(element, "gnss"), facts([
    ["receiver", valueCell(grandmaster.gnss_state)],
    ["antenna", grandmaster.antenna === null ? ABSENT : { text: grandmaster.antenna, className: grandmaster.antenna === "ok" ? "good" : "bad" }],
    ["satellites", valueCell(grandmaster.satellites === null ? null : gnss({ ...grandmaster, gnss_state: null }).replace("GNSS ", "").replace("satellites", "healthy"))],
    ["position", valueCell(grandmaster.position && positionText(grandmaster.position))],
    ["position mode", valueCell(grandmaster.gnss_position_mode)],
  ]));
  const sky = element.querySelector(".sky") as SVGSVGElement;
  element.querySelector(".sky-figure")?.toggleAttribute("hidden", !grandmaster.satellites?.length);
  const drawn = JSON.stringify(grandmaster.satellites);
  if (grandmaster.satellites?.length && sky.dataset.drawn !== drawn) {
    drawSatellites(sky, grandmaster.satellites);
    sky.dataset.drawn = drawn;
  }
}

const positionText = ({ latitude_deg: north, longitude_deg: east, height_m: height }: NonNullable<Grandmaster["position"]>): string =>
  `${north.toFixed(5)}, ${east.toFixed(5)}${height === null ? "" : `, ${height.toFixed(1)} m`}`;

function portRow({ name, state, enabled, profile, domain, clients, max_clients: most, client_load_percent: load }: Port): Row {
  const clientsText = clients === null ? "not provided" : `${clients}${most === null ? "" : ` of ${most}`} clients`;
  return [
    name, name, state === null ? enabled === null ? ABSENT : enabled ? "enabled" : "disabled" : spaced(state),
    { text: [profile, domain === null ? null : `domain ${domain}`].filter((part) => part !== null).join(", "), className: "quiet" },
    most !== null && most > 0 && clients !== null ? { text: clientsText, bar: clients / most } : { text: clientsText, className: clients === null ? "quiet" : "" },
    load === null ? { text: "", className: "" } : { text: `load ${load} %`, className: load >= 90 ? "bad" : load >= 75 ? "warn" : "" },
  ];
}

function renderTimeErrors(element: HTMLElement, grandmaster: Grandmaster): void {
  list(element, "time-errors", grandmaster.time_errors, "none", (error) => [
    `${error.channel} ${error.metric}`, error.channel, error.metric,
    { text: signed(error.value_ns), className: Math.abs(error.value_ns) > (error.alarm_threshold_ns ?? Infinity) ? "number bad" : "number" },
    { text: [error.reference && `to ${error.reference}`, error.status].filter(Boolean).join(", "), className: "quiet" }]);
}

const clockFacts = (grandmaster: Grandmaster): [string, Cell][] => [
  ["class", valueCell(grandmaster.clock_class)],
  ["accuracy", valueCell(grandmaster.clock_accuracy === null ? null : `0x${grandmaster.clock_accuracy.toString(16)}`)],
  ["variance", valueCell(grandmaster.offset_scaled_log_variance === null ? null : `0x${grandmaster.offset_scaled_log_variance.toString(16)}`)],
  ["phase to its reference", valueCell(grandmaster.phase_offset_ns === null ? null : signed(grandmaster.phase_offset_ns))],
  ["priorities", valueCell(grandmaster.priority1 === null && grandmaster.priority2 === null ? null : `${grandmaster.priority1 ?? "?"}, ${grandmaster.priority2 ?? "?"}`)],
  ["domain", valueCell(grandmaster.domain)],
  ["time source", valueCell(TIME_SOURCES[grandmaster.time_source ?? -1] ?? grandmaster.time_source)],
  ["TAI − UTC", valueCell(grandmaster.utc_offset_s === null ? null : `${grandmaster.utc_offset_s} s`)],
  ["leap second", ["insert", "delete", "both"].includes(grandmaster.leap ?? "") ? { text: `▲ ${grandmaster.leap} announced`, className: "warn" } : valueCell(grandmaster.leap)],
  ["time traceable", yesNo(grandmaster.time_traceable)],
  ["frequency traceable", yesNo(grandmaster.frequency_traceable)],
  ["steps removed", valueCell(grandmaster.steps_removed)],
  ["NTP", valueCell(ntp(grandmaster))],
];

const ntp = (grandmaster: Grandmaster): string | null => [grandmaster.ntp_mode, grandmaster.ntp_stratum === null ? null : `stratum ${grandmaster.ntp_stratum}`, grandmaster.ntp_leap && `leap ${grandmaster.ntp_leap}`]
  .filter((part) => part !== null).join(", ") || null;

const inventory = (grandmaster: Grandmaster): [string, Cell][] => [
  ["model", valueCell(grandmaster.model)], ["serial", valueCell(grandmaster.serial)], ["firmware", valueCell(grandmaster.firmware)], ["oscillator", valueCell(grandmaster.oscillator)],
  ["up for", valueCell(grandmaster.uptime_s === null ? null : durationText(grandmaster.uptime_s * 1e3))], ["engine boots", valueCell(grandmaster.engine_boots)],
  ["name", valueCell(grandmaster.sys_name)], ["description", valueCell(grandmaster.sys_descr)], ["object id", valueCell(grandmaster.sys_object_id)],
  ["identities", valueCell(grandmaster.identities.join(", ") || null)], ["profiles", valueCell(grandmaster.profiles.join(", ") || null)],
  ["not recognized", valueCell(grandmaster.unknown.join(", ") || "nothing")], ["polled by", valueCell(grandmaster.node)],
];

const CN0_FULL = 55;
const CN0_GOOD = 37;

/** One bar per satellite above its number. The line marks the C/N0 that a healthy sky reaches. */
function drawSatellites(sky: SVGSVGElement, satellites: Satellite[]): void {
  const width = Math.max(satellites.length, 12) * 24;
  sky.setAttribute("viewBox", `0 0 ${width} 74`);
  const y = (cn0: number): number => 56 - (Math.min(cn0, CN0_FULL) / CN0_FULL) * 44;
  sky.replaceChildren(
    svg("line", { class: "zero", x1: 0, x2: width, y1: y(CN0_GOOD), y2: y(CN0_GOOD) }),
    ...satellites.flatMap(({ number, cn0_db_hz: cn0, healthy }, index) => [
      svg("rect", { class: healthy ? "healthy" : "unhealthy", x: index * 24 + 3, width: 18, y: y(cn0 ?? 2), height: 56 - y(cn0 ?? 2) }),
      svg("text", { x: index * 24 + 12, y: y(cn0 ?? 2) - 2 }, String(cn0 ?? "?")),
      svg("text", { class: "name", x: index * 24 + 12, y: 70 }, String(number)),
    ]),
  );
}

