// Where the reader is: the view, the filters, the time range, the cursor and the zone, all of them in the address.

import { ROOT } from "./api.ts";
import { changed, pathOf, routeOf, type Route, type ViewName } from "./route.ts";
import { DEFAULT_RANGE, limitsOf, rangeOf, rangeParameters, timeText, zoneName, type Range, type Zone } from "./time.ts";

const KEPT_ON_EVERY_VIEW = ["last", "from", "to", "at", "tz", "mask"];

class Place {
  route: Route = { view: null, name: null };
  query = new URLSearchParams();
  /** As of when the numbers of the present paint are, in Unix ns; each view sets it. */
  asOfNs = 0;
  /** The range of an address that names none. */
  usualRange = DEFAULT_RANGE;
  private readonly listeners: (() => void)[] = [];

  read(): void {
    this.route = routeOf(location.pathname.slice(ROOT.length));
    this.query = new URLSearchParams(location.search);
    for (const listener of this.listeners) listener();
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** The address of a view, with the shared parameters of the present one. */
  link(view: ViewName, name: string | null = null, filters: Record<string, string | null> = {}): string {
    const kept = new URLSearchParams([...this.query].filter(([key]) => KEPT_ON_EVERY_VIEW.includes(key)));
    return this.address(pathOf(view, name), changed(kept, filters));
  }

  /** The present address with other parameters. */
  with(changes: Record<string, string | null>): string {
    return this.address(location.pathname.slice(ROOT.length), changed(this.query, changes));
  }

  private address(path: string, query: URLSearchParams): string {
    return `${ROOT}${path}${query.size > 0 ? `?${query}` : ""}`;
  }

  /** Another view or subject is read from its top. */
  go(address: string): void {
    const before = location.pathname;
    history.pushState(null, "", address);
    this.read();
    if (location.pathname !== before) scrollTo(0, 0);
  }

  /** Changes the address without a step in the browser's history. */
  replace(changes: Record<string, string | null>): void {
    history.replaceState(null, "", this.with(changes));
    this.read();
  }

  get zone(): Zone {
    return this.query.get("tz") === "local" ? "local" : "utc";
  }

  get range(): Range {
    return rangeOf(this.query, this.usualRange);
  }

  /** Those of a range that is not live. */
  get fixedLimits(): [fromMs: number, toMs: number] | null {
    return this.range.kind === "fixed" ? [this.range.fromMs, this.range.toMs] : null;
  }

  setRange(range: Range): void {
    this.go(this.with(rangeParameters(range, this.usualRange)));
  }

  limits(nowMs: number): [number, number] {
    return limitsOf(this.range, nowMs);
  }

  /** The moment that the reader marked in the charts, in Unix milliseconds. */
  get cursorMs(): number | null {
    const at = Date.parse(this.query.get("at") ?? "");
    return Number.isNaN(at) ? null : at;
  }

  get filters(): Record<"status" | "topology" | "grandmaster" | "q", string | null> {
    const of = (name: string): string | null => this.query.get(name);
    return { status: of("status"), topology: of("topology"), grandmaster: of("grandmaster"), q: of("q") };
  }
}

export const place = new Place();

/** A moment of the daemon's clock as text, in the zone that the reader selected. */
export const at = (realtimeNs: number): string => timeText(realtimeNs / 1e6, place.zone);

/** The same with the name of the zone. */
export const atZone = (realtimeNs: number): string => `${at(realtimeNs)} ${zoneName(place.zone)}`;
