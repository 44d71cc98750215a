// Requests to the daemon's JSON API.

import type { List } from "./types.ts";

/** The page's root, with its last slash: what every path is relative to, also behind a proxy's prefix. */
export const ROOT = typeof document === "undefined" ? "/" : new URL(document.documentElement.dataset.root ?? "./", location.href).pathname;

/** A daemon that is stopped, and a connection of which the other end is gone, answer nothing at all. */
const ANSWER_WITHIN_MS = 20_000;

/** An answer so old may come from one that the daemon computed for another viewer. */
const SHARED_S = 1;

/** The JSON body of a GET, or null where it fails or takes too long. A 401 opens the log-in page, which leads back here. */
export async function fetchJson<T>(path: string, withinMs = ANSWER_WITHIN_MS): Promise<T | null> {
  return (await fetchAged<T>(path, 0, withinMs)).body;
}

/** `ageMs` is the answer's age, rounded up; `status` null: no answer came. */
export interface Answer<T> {
  body: T | null;
  ageMs: number;
  status: number | null;
}

/** The same; the daemon may answer with what it computed for another viewer up to `maxAgeS` ago. */
export async function fetchAged<T>(path: string, maxAgeS: number, withinMs = ANSWER_WITHIN_MS): Promise<Answer<T>> {
  const headers = maxAgeS > 0 ? { "Cache-Control": `max-age=${maxAgeS}` } : undefined;
  const response = await fetch(ROOT + path, { headers, signal: AbortSignal.timeout(withinMs) }).catch(() => null);
  if (response?.status === 401) location.assign(`${ROOT}login?next=${encodeURIComponent(location.pathname.slice(ROOT.length) + location.search)}`);
  const body = response?.ok ? ((await response.json().catch(() => null)) as T | null) : null;
  return { body, ageMs: 1_000 * Number(response?.headers.get("Age") ?? 0), status: response?.status ?? null };
}

/**
 * Requests one path periodically while the page is visible, and not again before it answers. A new path is requested at
 * once, and a late response to an older one is dropped. `onResponse` gets when the daemon computed the answer, at the earliest.
 */
export class Poll<T> {
  private path: string | null = null;
  private requestedAt = -Infinity;
  private waiting = 0;

  constructor(private readonly intervalMs: number, private readonly onResponse: (body: T | null, computedAt: number, status: number | null) => void, private readonly maxAgeS = SHARED_S) {}

  /** Call it often. With the path null it requests nothing. */
  tick(path: string | null, now: number): void {
    const isNew = path !== this.path;
    this.path = path;
    if (path === null || (!isNew && (document.hidden || this.waiting > 0 || now - this.requestedAt < this.intervalMs))) return;
    this.requestedAt = now;
    this.waiting += 1;
    void fetchAged<T>(path, this.maxAgeS).then(({ body, ageMs, status }) => {
      this.waiting -= 1;
      if (this.path === path) this.onResponse(body, performance.now() - ageMs, status);
    });
  }
}

/** A list that the daemon serves page by page, with a button to the previous page and one to the next. */
export class PagedList<T> {
  items: T[] | null = null;
  next: string | null = null;
  receivedAt = 0;
  private cursors: string[] = [];
  private base: string | null = null;
  private readonly poll: Poll<List<T>>;

  constructor(intervalMs: number, private readonly previousButton: HTMLButtonElement, private readonly nextButton: HTMLButtonElement) {
    this.poll = new Poll<List<T>>(intervalMs, (body, computedAt) => this.update(body, computedAt));
    previousButton.addEventListener("click", () => this.cursors.pop());
    nextButton.addEventListener("click", () => this.next !== null && this.cursors.push(this.next));
  }

  private update(body: List<T> | null, computedAt: number): void {
    this.items = body?.items ?? null;
    this.next = body?.next ?? null;
    this.receivedAt = computedAt;
    this.nextButton.disabled = this.next === null;
  }

  /** `base` is a path with its question mark; another base starts at the first page. */
  tick(base: string | null, now: number): void {
    if (base !== this.base) this.cursors = [];
    this.base = base;
    const cursor = this.cursors.at(-1);
    this.previousButton.disabled = cursor === undefined;
    this.poll.tick(base === null ? null : cursor === undefined ? base : `${base}&cursor=${cursor}`, now);
  }

  get page(): number {
    return this.cursors.length + 1;
  }
}
