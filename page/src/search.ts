// Search over everything that the page knows: nodes by the daemon, the rest here.

import { fetchJson } from "./api.ts";
import { byId, h } from "./dom.ts";
import { place } from "./place.ts";
import { state } from "./state.ts";
import type { List, NodeState } from "./types.ts";

const MOST_OF_A_KIND = 6;

export interface Hit {
  kind: string;
  name: string;
  href: string;
}

/** The names that contain the text, those that begin with it first. */
export function matching<T>(text: string, items: Iterable<T>, nameOf: (item: T) => string): T[] {
  const wanted = text.toLowerCase();
  const found = [...items].filter((item) => nameOf(item).toLowerCase().includes(wanted));
  return found.toSorted((a, b) => Number(nameOf(b).toLowerCase().startsWith(wanted)) - Number(nameOf(a).toLowerCase().startsWith(wanted))).slice(0, MOST_OF_A_KIND);
}

function knownHits(text: string): Hit[] {
  const { grandmaster, job, finding } = state.received;
  const jobs = [...job.values()].map(({ data }) => data);
  const ranks = jobs.flatMap((each) => each.ranks.map((rank) => ({ name: `${rank.rank} of ${each.job} on ${rank.node}`, id: each.job_id })));
  const racks = [...new Set(state.overview?.data.chain.map(({ place: rack }) => rack).filter(Boolean) ?? [])];
  const findings = [...finding.values()].map(({ data }) => `${data.id} ${data.subject}`);
  return [
    ...matching(text, racks, (rack) => rack).map((rack) => ({ kind: "rack", name: rack, href: place.link("fleet", null, { topology: rack }) })),
    ...matching(text, grandmaster.values(), ({ data }) => `${data.name} ${data.identities.join(" ")}`).map(({ data: { name } }) => ({ kind: "grandmaster", name, href: place.link("grandmaster", name) })),
    ...matching(text, jobs, (each) => `${each.job} ${each.job_id}`).map((each) => ({ kind: "job", name: each.job, href: place.link("job", each.job_id) })),
    ...matching(text, ranks, ({ name }) => `rank ${name}`).map(({ name, id }) => ({ kind: "rank", name, href: place.link("job", id) })),
    ...matching(text, findings, (name) => name).map((name) => ({ kind: "finding", name, href: place.link("timeline") })),
  ];
}

export class Search {
  private readonly input = byId<HTMLInputElement>("search");
  private readonly list = byId("search-results");
  private hits: Hit[] = [];
  private chosen = 0;

  constructor() {
    this.input.addEventListener("input", () => void this.update());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
  }

  focus(): void {
    this.input.focus();
    this.input.select();
  }

  private async update(): Promise<void> {
    const text = this.input.value.trim();
    if (text === "") return this.close();
    this.show(text, knownHits(text));
    const part = text.replace(/[^A-Za-z0-9._-]/g, "").slice(0, 64);
    if (part === "") return;
    const nodes = (await fetchJson<List<NodeState>>(`api/v1/nodes?limit=${MOST_OF_A_KIND}&q=${encodeURIComponent(part)}`))?.items ?? [];
    if (this.input.value.trim() !== text) return;
    this.show(text, [...nodes.map((node) => ({ kind: "node", name: node.node, href: place.link("node", node.node) })), ...knownHits(text)]);
  }

  private show(text: string, hits: Hit[]): void {
    this.hits = hits;
    this.chosen = 0;
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    const items = hits.map((hit, index) => {
      const item = h("li", { id: `hit-${index}`, role: "option", "aria-selected": "false" }, h("span", { class: "quiet" }, hit.kind), ` ${hit.name}`);
      item.addEventListener("pointerdown", () => this.open(hit));
      return item;
    });
    this.list.replaceChildren(...(items.length > 0 ? items : [h("li", { role: "option", "aria-selected": "false", "aria-disabled": "true" }, `nothing matches ${text}`)]));
    this.mark();
  }

  private mark(): void {
    [...this.list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === this.chosen && this.hits.length > 0)));
    if (this.hits.length > 0) this.input.setAttribute("aria-activedescendant", `hit-${this.chosen}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      this.input.value = "";
      this.close();
      this.input.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const count = Math.max(1, this.hits.length);
      this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : count - 1)) % count;
      this.mark();
    } else if (event.key === "Enter") {
      const hit = this.hits[this.chosen];
      if (hit) this.open(hit);
    }
  }

  private open(hit: Hit): void {
    place.go(hit.href);
    this.input.value = "";
    this.close();
    this.input.blur();
  }

  private close(): void {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
