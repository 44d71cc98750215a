// The nodes, a page at a time: searched and filtered by the daemon, never all of them here.

import { Pages, address, wanted } from "./ask.js";
import { byId, fillTable, number, put } from "./dom.js";
import { bound, nodeNow, signed, span, word } from "./model.js";
import { follows, offsetOf, reasonOf } from "./node.js";

const PAGE = 50;
const LIST_EVERY_MS = 3_000;
const FILTERS = ["status", "topology", "grandmaster"];

export class NodeList {
  constructor() {
    this.pages = new Pages(LIST_EVERY_MS, [byId("nodes-back"), byId("nodes-on")]);
    const search = byId("nodes-search");
    search.value = wanted().get("q") ?? "";
    search.addEventListener("input", () => history.replaceState(null, "", address({ q: search.value.trim() })));
    byId("nodes-status").addEventListener("change", ({ target }) => { location.hash = address({ status: target.value }); });
  }

  render(summary, now) {
    byId("nodes-section").hidden = summary === null;
    this.pages.tick(summary === null ? null : `api/v1/nodes?${asked()}`, now);
    if (summary === null) return;
    const chosen = wanted();
    byId("nodes-status").value = chosen.get("status") ?? "";
    this.renderFilters(chosen);
    const { items, heardAt, page } = this.pages;
    fillTable(byId("nodes"), (items ?? []).map((node) => nodeRow(node, heardAt, now)));
    put(byId("nodes-page"), items === null ? "" : items.length === 0 ? "no node is like that" : `page ${page}, ${items[0].node} to ${items.at(-1).node}`);
    byId("nodes-pages").hidden = page === 1 && !this.pages.next;
  }

  renderFilters(chosen) {
    const given = FILTERS.slice(1).filter((name) => chosen.get(name));
    const link = byId("nodes-all");
    link.hidden = given.length === 0;
    put(link, `✕ ${given.map((name) => `${name} ${chosen.get(name)}`).join(", ")}`);
    link.href = address(Object.fromEntries(FILTERS.map((name) => [name, null])));
  }
}

/** What the daemon is asked; of a search what a name may be made of. */
function asked() {
  const chosen = wanted();
  const parts = new URLSearchParams({ limit: PAGE });
  for (const name of FILTERS) if (chosen.get(name)) parts.set(name, chosen.get(name));
  const part = (chosen.get("q") ?? "").replace(/[^A-Za-z0-9._-]/g, "").slice(0, 64);
  if (part) parts.set("q", part);
  return parts;
}

function nodeRow(node, heardAt, now) {
  const state = nodeNow(node, heardAt, now);
  const offset = offsetOf(node);
  const reason = state.main === "SYNCHRONIZED" ? "" : reasonOf(node, state);
  return [
    node.node, { text: node.node, href: address({ node: node.node }) }, word(state.main, state.alone ? "UTC " : ""), number(bound(state.mainNs)),
    number(offset === null ? "—" : signed(offset)), follows(node), { text: node.topology ?? "", look: "quiet" },
    number(state.ageNs === null ? "—" : span(state.ageNs / 1e6)), { text: reason, look: "quiet" },
  ];
}
