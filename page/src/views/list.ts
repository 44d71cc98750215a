// The list of nodes, a page at a time: the daemon searches and filters, so the browser never holds all of them.

import { PagedList } from "../api.ts";
import { byId, fillTable, number, put, type Row } from "../dom.ts";
import { bound, elapsedText, nodeNow, statusCell } from "../model.ts";
import { place } from "../place.ts";
import type { NodeState } from "../types.ts";
import { grandmasterText, offsetText, reasonText } from "./node.ts";

const NODES_A_PAGE = 50;
const LIST_EVERY_MS = 2_000;

export class NodeList {
  private readonly list = new PagedList<NodeState>(LIST_EVERY_MS, byId<HTMLButtonElement>("nodes-previous"), byId<HTMLButtonElement>("nodes-next"));
  private readonly search = byId<HTMLInputElement>("nodes-search");
  private readonly status = byId<HTMLSelectElement>("nodes-status");

  constructor() {
    this.search.addEventListener("input", () => place.replace({ q: this.search.value.trim() }));
    this.status.addEventListener("change", () => place.go(place.with({ status: this.status.value })));
  }

  render(isFleet: boolean, now: number): void {
    byId("nodes-section").hidden = !isFleet;
    this.list.tick(isFleet ? `api/v1/nodes?${nodesQuery()}` : null, now);
    if (!isFleet) return;
    this.status.value = place.filters.status ?? "";
    if (document.activeElement !== this.search) this.search.value = place.filters.q ?? "";
    renderFilters();
    const { items, receivedAt, page } = this.list;
    fillTable(byId("nodes"), (items ?? []).map((node) => nodeRow(node, receivedAt, now)));
    put(byId("nodes-page"), items === null ? "" : items.length === 0 ? "no node matches" : `page ${page}, ${items[0]?.node} to ${items.at(-1)?.node}`);
    byId("nodes-pages").hidden = page === 1 && !this.list.next;
  }
}

function renderFilters(): void {
  const active = (["topology", "grandmaster"] as const).filter((name) => place.filters[name]);
  const link = byId<HTMLAnchorElement>("nodes-all");
  link.hidden = active.length === 0;
  put(link, `✕ ${active.map((name) => `${name} ${place.filters[name]}`).join(", ")}`);
  link.href = place.with({ status: null, topology: null, grandmaster: null });
}

/** The query of the request; a search keeps only the characters that a node's name can have. */
function nodesQuery(): URLSearchParams {
  const query = new URLSearchParams({ limit: String(NODES_A_PAGE) });
  const { status, topology, grandmaster, q } = place.filters;
  for (const [name, value] of Object.entries({ status, topology, grandmaster })) if (value) query.set(name, value);
  const part = (q ?? "").replace(/[^A-Za-z0-9._-]/g, "").slice(0, 64);
  if (part) query.set("q", part);
  return query;
}

function nodeRow(node: NodeState, receivedAt: number, now: number): Row {
  const its = nodeNow(node, receivedAt, now);
  const reason = its.mainStatus === "SYNCHRONIZED" ? "" : reasonText(node, its);
  return [
    node.node, { text: node.node, href: place.link("node", node.node) }, statusCell(its.mainStatus, its.isUtcOnly ? "UTC " : ""), number(bound(its.mainNs)),
    number(offsetText(node)), grandmasterText(node), { text: node.topology ?? "", className: "quiet" },
    number(its.ageNs === null ? "—" : elapsedText(its.ageNs / 1e6)), { text: reason, className: "quiet" },
  ];
}
