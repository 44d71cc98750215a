// The list of nodes, a page at a time: the daemon searches and filters, so the browser never holds all of them.

import { PagedList, hashParameters, hashWith } from "./api.js";
import { byId, fillTable, number, put } from "./dom.js";
import { bound, elapsedText, nodeNow, statusCell } from "./model.js";
import { grandmasterText, offsetText, reasonText } from "./node.js";

const NODES_A_PAGE = 50;
const LIST_EVERY_MS = 3_000;
const FILTERS = ["status", "topology", "grandmaster"];

export class NodeList {
  constructor() {
    this.list = new PagedList(LIST_EVERY_MS, [byId("nodes-previous"), byId("nodes-next")]);
    const search = byId("nodes-search");
    search.value = hashParameters().get("q") ?? "";
    search.addEventListener("input", () => history.replaceState(null, "", hashWith({ q: search.value.trim() })));
    byId("nodes-status").addEventListener("change", ({ target }) => { location.hash = hashWith({ status: target.value }); });
  }

  render(summary, now) {
    byId("nodes-section").hidden = summary === null;
    this.list.tick(summary === null ? null : `api/v1/nodes?${nodesQuery()}`, now);
    if (summary === null) return;
    const filters = hashParameters();
    byId("nodes-status").value = filters.get("status") ?? "";
    this.renderFilters(filters);
    const { items, receivedAt, page } = this.list;
    fillTable(byId("nodes"), (items ?? []).map((node) => nodeRow(node, receivedAt, now)));
    put(byId("nodes-page"), items === null ? "" : items.length === 0 ? "no node matches" : `page ${page}, ${items[0].node} to ${items.at(-1).node}`);
    byId("nodes-pages").hidden = page === 1 && !this.list.next;
  }

  renderFilters(filters) {
    const active = FILTERS.slice(1).filter((name) => filters.get(name));
    const link = byId("nodes-all");
    link.hidden = active.length === 0;
    put(link, `✕ ${active.map((name) => `${name} ${filters.get(name)}`).join(", ")}`);
    link.href = hashWith(Object.fromEntries(FILTERS.map((name) => [name, null])));
  }
}

/** The query of the request; a search keeps only the characters that a node's name can have. */
function nodesQuery() {
  const filters = hashParameters();
  const query = new URLSearchParams({ limit: NODES_A_PAGE });
  for (const name of FILTERS) if (filters.get(name)) query.set(name, filters.get(name));
  const part = (filters.get("q") ?? "").replace(/[^A-Za-z0-9._-]/g, "").slice(0, 64);
  if (part) query.set("q", part);
  return query;
}

function nodeRow(node, receivedAt, now) {
  const state = nodeNow(node, receivedAt, now);
  const reason = state.mainStatus === "SYNCHRONIZED" ? "" : reasonText(node, state);
  return [
    node.node, { text: node.node, href: hashWith({ node: node.node }) }, statusCell(state.mainStatus, state.isUtcOnly ? "UTC " : ""), number(bound(state.mainNs)),
    number(offsetText(node)), grandmasterText(node), { text: node.topology ?? "", className: "quiet" },
    number(state.ageNs === null ? "—" : elapsedText(state.ageNs / 1e6)), { text: reason, className: "quiet" },
  ];
}
