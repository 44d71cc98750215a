// The timeline: a lane for each subject with its findings, arrows along a finding's chain, and the events as a list.

import { ROOT, fetchJson } from "../api.ts";
import { byId, h, put, svg } from "../dom.ts";
import { lanesOf, placedBars, type Lane } from "../lanes.ts";
import { at, place } from "../place.ts";
import { isPhone, letters } from "../size.ts";
import { state } from "../state.ts";
import { ticksOf, zoneName } from "../time.ts";
import type { Finding, List, Note } from "../types.ts";
import { EventList, renderFindings } from "./findings.ts";

const FINDINGS_EVERY_MS = 10_000;
const MOST_FINDINGS = 300;
/** The height of one row of bars, and the space between two lanes. */
const ROW = 26, LANE_GAP = 8;
const leftOf = (): number => letters(isPhone() ? 96 : 150);

export class TimelineView {
  private readonly events = new EventList();
  /** null: not answered yet. */
  private findings: Finding[] | null = null;
  private notes: Note[] = [];
  private requested = "";
  private requestedAt = -Infinity;
  private linked = "";

  constructor() {
    byId("note-form").addEventListener("submit", (event) => void this.write(event));
    byId("note-kind").addEventListener("change", () => this.renderForm());
  }

  render(now: number): void {
    renderFindings(state.received.finding);
    this.events.render(now);
    this.load(now);
    this.renderForm();
    this.selectLinked();
    byId<HTMLAnchorElement>("post-mortem").href = `${ROOT}api/v1/postmortem?${this.query()}`;
    this.draw();
  }

  private query(extra: Record<string, string> = {}): URLSearchParams {
    const [from, to] = place.limits(Date.now());
    return new URLSearchParams({ since: new Date(from).toISOString(), until: new Date(to).toISOString(), ...extra });
  }

  private load(now: number): void {
    const request = JSON.stringify([place.range, state.received.finding.size]);
    if (request === this.requested && (document.hidden || now - this.requestedAt < FINDINGS_EVERY_MS)) return;
    Object.assign(this, { requested: request, requestedAt: now });
    void fetchJson<List<Finding>>(`api/v1/findings?${this.query({ limit: String(MOST_FINDINGS) })}`).then((body) => {
      if (request === this.requested && body !== null) this.findings = body.items;
    });
    void fetchJson<List<Note>>(`api/v1/notes?${this.query()}`).then((body) => {
      if (request === this.requested && body !== null) this.notes = body.items;
    });
  }

  private draw(): void {
    const host = byId("lanes");
    const [from, to] = place.limits(Date.now());
    const lanes = lanesOf(this.findings ?? [], to * 1e6, this.notes);
    put(byId("lanes-note"), lanes.length > 0 ? zoneName(place.zone) : this.findings === null ? "loading" : "No finding and no note in this time range.");
    const drawn = JSON.stringify([lanes, Math.round(from / 1e3), Math.round(to / 1e3), host.clientWidth, place.zone, place.cursorMs]);
    if (host.dataset.drawn === drawn || host.clientWidth === 0) return;
    host.dataset.drawn = drawn;
    host.replaceChildren(picture(lanes, from, to, host.clientWidth));
  }

  /** A note is signed by the daemon with the name of the token; the header is one that no other site's page can send. */
  private async write(event: Event): Promise<void> {
    event.preventDefault();
    const of = (id: string): string => byId<HTMLInputElement | HTMLSelectElement>(id).value;
    const [finding = "", subject = ""] = (JSON.parse(of("note-finding") || "[]") as string[]);
    const kind = of("note-kind");
    const ofFinding = kind === "acknowledge" || kind === "silence";
    const body = {
      kind, text: of("note-text"), subject: ofFinding ? subject : of("note-subject"),
      ...(ofFinding ? { finding } : {}), ...(kind === "silence" ? { silence_s: Number(of("note-silence")) } : {}),
    };
    const response = await fetch(`${ROOT}api/v1/notes`, {
      method: "POST", headers: { "Content-Type": "application/json", "X-Timesyncd-Write": "1" }, body: JSON.stringify(body),
    }).catch(() => null);
    const reply = (await response?.json().catch(() => null)) as { error?: string; author?: string } | null;
    put(byId("note-reply"), response?.ok ? `written as ${reply?.author}` : (reply?.error ?? "the daemon does not answer"), response?.ok ? "good" : "bad");
    if (response?.ok) {
      byId<HTMLFormElement>("note-form").reset();
      this.requestedAt = -Infinity;
    }
  }

  /** Only the fields that the kind of note has. */
  private renderForm(): void {
    const kind = byId<HTMLSelectElement>("note-kind").value;
    const ofFinding = kind === "acknowledge" || kind === "silence";
    byId("note-about").hidden = ofFinding;
    byId("note-of").hidden = !ofFinding;
    byId("note-for").hidden = kind !== "silence";
    const select = byId<HTMLSelectElement>("note-finding");
    const known = [...state.received.finding.values()].map(({ data }) => [data.id, data.subject]);
    const drawn = JSON.stringify(known);
    if (select.dataset.drawn === drawn) return;
    select.dataset.drawn = drawn;
    const before = select.value;
    select.replaceChildren(...known.map((each) => h("option", { value: JSON.stringify(each) }, each.join(" of "))));
    if (known.some((each) => JSON.stringify(each) === before)) select.value = before;
  }

  /** Once for each link that names a finding to acknowledge. */
  private selectLinked(): void {
    const [kind, ...linked] = ["note", "finding", "subject"].map((name) => place.query.get(name));
    const [select, wanted] = [byId<HTMLSelectElement>("note-finding"), JSON.stringify(linked)];
    if (kind !== "acknowledge" || this.linked === location.search || ![...select.options].some(({ value }) => value === wanted)) return;
    this.linked = location.search;
    byId<HTMLSelectElement>("note-kind").value = kind;
    select.value = wanted;
    this.renderForm();
    byId("note-text").focus();
  }
}

function picture(lanes: Lane[], from: number, to: number, width: number): SVGSVGElement {
  const left = leftOf();
  const x = (ms: number): number => left + ((Math.min(to, Math.max(from, ms)) - from) / (to - from)) * (width - left - 4);
  const placed = lanes.map((lane) => placedBars(lane.bars, (ns) => x(ns / 1e6), left, width - 4, letters(7)));
  const heights = placed.map((bars) => (1 + Math.max(0, ...bars.map(({ row }) => row))) * ROW + LANE_GAP);
  const tops = heights.map((_, index) => heights.slice(0, index).reduce((sum, each) => sum + each, 0));
  const height = heights.reduce((sum, each) => sum + each, 0) + 24;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "findings over time" });
  root.append(...gridLines(from, to, x, height, width));
  const middle = (lane: number, row = 0): number => (tops[lane] ?? 0) + row * ROW + (ROW + LANE_GAP) / 2;
  lanes.forEach((lane, index) => {
    root.append(svg("text", { x: left - 8, y: middle(index), "text-anchor": "end", "dominant-baseline": "middle", class: "lane" }, fitted(lane.name, Math.floor((left - 10) / letters(7)))));
    for (const { bar, row, x0, x1, textX, isLeft, letters: room } of placed[index] ?? []) {
      const group = svg("g");
      group.append(
        svg("rect", { x: x0, y: middle(index, row) - ROW / 2 + 1, width: x1 - x0, height: ROW - 2, rx: 4, class: `bar-${bar.severity}${bar.isOpen ? "" : " ended"}` }),
        svg("text", { x: textX, y: middle(index, row), "dominant-baseline": "middle", "text-anchor": isLeft ? "end" : "start", class: "bar-text" }, fitted(bar.text, room)),
        svg("title", {}, `${lane.name}: ${bar.text}, since ${at(bar.fromNs)}${bar.evidence === "" ? "" : `: ${bar.evidence}`}`),
      );
      root.append(group);
    }
  });
  for (const arrow of lanes.flatMap((lane) => lane.arrows)) {
    const rowOf = (lane: number, atNs: number): number => placed[lane]?.find(({ bar }) => bar.fromNs === atNs)?.row ?? 0;
    const [x0, y0] = [x(arrow.atNs / 1e6) + 6, middle(arrow.fromLane, rowOf(arrow.fromLane, arrow.atNs))];
    const [x1, y1] = [x(arrow.toNs / 1e6) + 2, middle(arrow.toLane, rowOf(arrow.toLane, arrow.toNs))];
    root.append(svg("path", { d: `M${x0} ${y0}C${x0 + 24} ${y0} ${x1 - 24} ${y1} ${x1} ${y1}`, class: "arrow" }), svg("circle", { cx: x1, cy: y1, r: 3, class: "arrow-end" }));
  }
  return root;
}

/** As many letters of a text as there is room for. */
const fitted = (text: string, room: number): string => (text.length <= room ? text : room < 1 ? "" : `${text.slice(0, Math.max(1, room - 1))}…`);

function gridLines(from: number, to: number, x: (ms: number) => number, height: number, width: number): SVGElement[] {
  const most = Math.max(2, Math.floor((width - leftOf()) / letters(110)));
  const cursor = place.cursorMs === null ? [] : [svg("line", { x1: x(place.cursorMs), x2: x(place.cursorMs), y1: 0, y2: height - 20, class: "cursor" })];
  return [...cursor, ...ticksOf(from, to, most, place.zone).flatMap(({ ms, text }) => [
    svg("line", { x1: x(ms), x2: x(ms), y1: 0, y2: height - 20, class: "grid" }),
    svg("text", { x: x(ms), y: height - 6, "text-anchor": x(ms) > width - letters(30) ? "end" : "middle", class: "lane" }, text),
  ])];
}
