// The frame around every view: navigation, time range, zone, theme, keys, the connection's line and the banner.

import { ROOT } from "./api.ts";
import { THEMES, followSystem, setTheme, type Theme } from "./colours.ts";
import { byId, copyText, h, put } from "./dom.ts";
import type { Liveness } from "./liveness.ts";
import { atZone, place } from "./place.ts";
import { VIEWS, type ViewName } from "./route.ts";
import { Search } from "./search.ts";
import { state } from "./state.ts";
import { SPANS, panned, rangeText, spanMs, zoneName, zoomed } from "./time.ts";
import type { Tab } from "./title.ts";
import { hubLink } from "./views/fleet.ts";

const THEME_KEY = "timesyncd-theme";
const FAVICON_COLOURS: Record<string, string> = { good: "%230f9b78", warn: "%23d07c00", bad: "%23c01533", unknown: "%237a4fd0", quiet: "%23808080" };

export class Frame {
  private readonly search = new Search();
  private theme: Theme = "system";

  constructor() {
    followSystem();
    byId("log-out").hidden = document.documentElement.dataset.login !== "yes";
    const kept = localStorage.getItem(THEME_KEY);
    this.select(THEMES.find((theme) => theme === kept) ?? "system");
    byId("theme").addEventListener("click", () => this.nextTheme());
    byId("zone").addEventListener("click", switchZone);
    byId("help-open").addEventListener("click", () => byId<HTMLDialogElement>("help").showModal());
    byId("range-live").addEventListener("click", () => place.setRange(place.usualRange));
    byId("copy-link").addEventListener("click", () => void copyText(byId("copy-link"), location.href));
    const range = byId<HTMLSelectElement>("range");
    range.addEventListener("change", () => {
      const ms = spanMs(range.value);
      if (ms !== null) place.setRange({ kind: "live", span: range.value, spanMs: ms });
    });
    document.addEventListener("click", openInPlace);
    document.addEventListener("keydown", (event) => this.key(event));
  }

  private select(theme: Theme): void {
    this.theme = theme;
    setTheme(theme);
    put(byId("theme"), { system: "◐", light: "☀", dark: "☾" }[theme]);
    byId("theme").setAttribute("aria-label", `theme: ${theme}`);
  }

  private nextTheme(): void {
    this.select(THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length] as Theme);
    localStorage.setItem(THEME_KEY, this.theme);
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    const now = Date.now();
    const actions: Record<string, () => void> = {
      "/": () => this.search.focus(),
      "?": () => byId<HTMLDialogElement>("help").showModal(),
      "[": () => place.setRange(panned(place.range, -0.25, now)),
      "]": () => place.setRange(panned(place.range, 0.25, now)),
      "+": () => place.setRange(zoomed(place.range, 0.5, now)),
      "-": () => place.setRange(zoomed(place.range, 2, now)),
      l: () => place.setRange(place.usualRange),
      u: switchZone,
      t: () => this.nextTheme(),
      Escape: () => { if (place.cursorMs !== null) place.replace({ at: null }); },
      ...Object.fromEntries(VIEWS.map((view, index) => [String(index + 1), () => place.go(place.link(view))])),
    };
    const action = actions[event.key];
    if (action === undefined || byId<HTMLDialogElement>("help").open) return;
    event.preventDefault();
    action();
  }

  /** What follows from the address. */
  renderPlace(view: ViewName): void {
    for (const link of document.querySelectorAll<HTMLAnchorElement>("nav a")) {
      const name = link.dataset.view as ViewName;
      link.href = place.link(name);
      if (name === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId<HTMLAnchorElement>("home").href = ROOT;
    for (const name of VIEWS) byId(`view-${name}`).hidden = name !== view;
    put(byId("zone"), zoneName(place.zone));
    renderRange();
  }

  /** Whether the daemon answers. Nothing is green while it does not. */
  renderLiveness(its: Liveness): void {
    document.documentElement.classList.toggle("stale", its.banner !== "");
    byId("banner").hidden = its.banner === "";
    put(byId("banner-text"), its.banner);
    renderPeers();
  }

  /** When the last event arrived, and as of when the numbers of this paint are; `silentMs` null: nothing arrived yet. */
  renderConnection(its: Liveness, silentMs: number | null, asOfNs: number, dropped: number): void {
    byId("main").dataset.asOf = String(asOfNs);
    const lost = dropped > 0 ? ` (the daemon dropped ${dropped} events: this browser read too slowly)` : "";
    const times = `, last event ${((silentMs ?? 0) / 1e3).toFixed(1)} s ago · as of ${atZone(asOfNs)}`;
    put(byId("connection"), its.isLive ? `${its.text}${times}${lost}` : its.text, its.isLive ? "good" : its.banner === "" ? "unknown" : "bad");
  }

  renderTitle(node: string, { title, colour }: Tab): void {
    if (document.title !== title) document.title = title;
    put(byId("node-name"), node);
    const icon = `data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><circle cx='8' cy='8' r='7' fill='${FAVICON_COLOURS[colour]}'/></svg>`;
    if (byId<HTMLLinkElement>("favicon" as string).getAttribute("href") !== icon) byId("favicon").setAttribute("href", icon);
  }
}

function switchZone(): void {
  place.go(place.with({ tz: place.zone === "utc" ? "local" : null }));
}

function renderRange(): void {
  const select = byId<HTMLSelectElement>("range");
  const { range } = place;
  const options = range.kind === "fixed" ? ["", ...SPANS] : SPANS.includes(range.span) ? SPANS : [range.span, ...SPANS];
  const drawn = JSON.stringify([options, range, place.zone]);
  byId("range-live").hidden = range.kind === "live";
  byId("range-note").hidden = range.kind === "live";
  put(byId("range-note"), `Charts and the timeline show ${rangeText(range, place.zone)}. Headlines and tables show now.`);
  byId("header").classList.toggle("has-fixed-range", range.kind === "fixed");
  if (select.dataset.drawn === drawn) return;
  select.dataset.drawn = drawn;
  select.replaceChildren(...options.map((span) => {
    const ms = spanMs(span);
    return h("option", { value: span }, ms === null ? rangeText(range, place.zone) : rangeText({ kind: "live", span, spanMs: ms }, place.zone));
  }));
  select.value = range.kind === "fixed" ? "" : range.span;
}

/** The pages of the other hubs, in the banner. */
function renderPeers(): void {
  const own = state.received.own;
  const peers = [...state.received.hub.values()].map(({ data }) => data).filter((hub) => hub.node !== own);
  const links = peers.map(hubLink).filter((cell) => typeof cell !== "string" && cell.href !== undefined) as { text: string; href: string }[];
  const drawn = JSON.stringify(links);
  const box = byId("banner-peers");
  if (box.dataset.drawn === drawn) return;
  box.dataset.drawn = drawn;
  box.replaceChildren(...(links.length === 0 ? [] : ["other hubs: ", ...links.flatMap(({ text, href }) => [h("a", { href }, text), " "])]));
}

/** A link within the page changes the view without a reload. */
function openInPlace(event: MouseEvent): void {
  const link = (event.target as Element).closest("a");
  const href = link?.getAttribute("href");
  if (!href?.startsWith("/") || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (!href.startsWith(ROOT) || href.startsWith(`${ROOT}api/`)) return;
  event.preventDefault();
  place.go(href);
}
