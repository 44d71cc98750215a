// What is asked of the daemon besides its events, and what the page's address says is wanted of it.

/** The answer, or null where there is none. Who must log in is led there. */
export async function ask(path) {
  const answer = await fetch(path).catch(() => null);
  if (answer?.status === 401) location.assign("login");
  return answer?.ok ? answer.json() : null;
}

/** Asks again and again while somebody looks; a new question does not wait, and an answer to an older one is not told. */
export class Poll {
  constructor(everyMs, told) {
    this.everyMs = everyMs;
    this.told = told;
    this.path = null;
    this.askedAt = -Infinity;
  }

  /** To be called often; null: nothing is asked. */
  tick(path, now) {
    const isNew = path !== this.path;
    this.path = path;
    if (path === null || (!isNew && (document.hidden || now - this.askedAt < this.everyMs))) return;
    this.askedAt = now;
    ask(path).then((answer) => {
      if (this.path === path) this.told(answer, performance.now(), path);
    });
  }

  again() {
    this.askedAt = -Infinity;
  }
}

/** A list that comes page by page. */
export class Pages {
  constructor(everyMs, buttons) {
    this.cursors = [];
    this.base = null;
    this.items = null;
    this.heardAt = 0;
    [this.back, this.on] = buttons;
    this.poll = new Poll(everyMs, (answer, now) => this.take(answer, now));
    this.back.addEventListener("click", () => this.cursors.pop());
    this.on.addEventListener("click", () => this.next && this.cursors.push(this.next));
  }

  take(answer, now) {
    this.items = answer?.items ?? null;
    this.next = answer?.next ?? null;
    this.heardAt = now;
    this.on.disabled = this.next === null;
  }

  /** `base` has its question mark; another one begins at the first page. */
  tick(base, now) {
    if (base !== this.base) this.cursors = [];
    this.base = base;
    const cursor = this.cursors.at(-1);
    this.back.disabled = cursor === undefined;
    this.poll.tick(base === null ? null : cursor === undefined ? base : `${base}&cursor=${cursor}`, now);
  }

  get page() {
    return this.cursors.length + 1;
  }
}

/** What the address says behind its #, as of now. */
export const wanted = () => new URLSearchParams(location.hash.slice(1));

/** The address with these changes; null takes a part out. */
export function address(changes) {
  const parts = wanted();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") parts.delete(name);
    else parts.set(name, value);
  }
  return `#${parts}`;
}
