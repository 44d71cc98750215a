// Requests to the daemon's JSON API, and the filters in the page's address.

/** The JSON body of a GET, or null where it fails. A 401 opens the log-in page. */
export async function fetchJson(path) {
  const response = await fetch(path).catch(() => null);
  if (response?.status === 401) location.assign("login");
  return response?.ok ? response.json() : null;
}

/** Requests one path periodically while the page is visible. A new path is requested at once, and a late response to an older one is dropped. */
export class Poll {
  constructor(intervalMs, onResponse) {
    this.intervalMs = intervalMs;
    this.onResponse = onResponse;
    this.path = null;
    this.requestedAt = -Infinity;
  }

  /** Call it often. With the path null it requests nothing. */
  tick(path, now) {
    const isNew = path !== this.path;
    this.path = path;
    if (path === null || (!isNew && (document.hidden || now - this.requestedAt < this.intervalMs))) return;
    this.requestedAt = now;
    fetchJson(path).then((body) => {
      if (this.path === path) this.onResponse(body, performance.now());
    });
  }
}

/** A list that the daemon serves page by page, with a button to the previous page and one to the next. */
export class PagedList {
  constructor(intervalMs, [previousButton, nextButton]) {
    this.cursors = [];
    this.base = null;
    this.items = null;
    this.receivedAt = 0;
    this.previousButton = previousButton;
    this.nextButton = nextButton;
    this.poll = new Poll(intervalMs, (body, now) => this.update(body, now));
    previousButton.addEventListener("click", () => this.cursors.pop());
    nextButton.addEventListener("click", () => this.next && this.cursors.push(this.next));
  }

  update(body, now) {
    this.items = body?.items ?? null;
    this.next = body?.next ?? null;
    this.receivedAt = now;
    this.nextButton.disabled = this.next === null;
  }

  /** `base` is a path with its question mark; another base starts at the first page. */
  tick(base, now) {
    if (base !== this.base) this.cursors = [];
    this.base = base;
    const cursor = this.cursors.at(-1);
    this.previousButton.disabled = cursor === undefined;
    this.poll.tick(base === null ? null : cursor === undefined ? base : `${base}&cursor=${cursor}`, now);
  }

  get page() {
    return this.cursors.length + 1;
  }
}

/** The parameters behind the # of the page's address. */
export const hashParameters = () => new URLSearchParams(location.hash.slice(1));

/** The hash of the address with these changes; null removes a parameter. */
export function hashWith(changes) {
  const parameters = hashParameters();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") parameters.delete(name);
    else parameters.set(name, value);
  }
  return `#${parameters}`;
}
