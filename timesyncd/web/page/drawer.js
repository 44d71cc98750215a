// The dialog with one node of the fleet: what its own status page shows, and its history.

import { Poll, hashParameters, hashWith } from "./api.js";
import { byId, put } from "./dom.js";
import { HistoryCharts } from "./history.js";
import { NodeCard } from "./node.js";

const NODE_EVERY_MS = 2_000;
const PARTS = ["hero", "sources-section", "terms-section"];
const PREFIX = "one-";

export class Drawer {
  constructor() {
    this.dialog = byId("drawer");
    this.entry = null;
    this.poll = new Poll(NODE_EVERY_MS, (node, now) => this.update(node, now));
    byId("drawer-close").addEventListener("click", () => { location.hash = hashWith({ node: null }); });
    this.dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      location.hash = hashWith({ node: null });
    });
    byId("drawer-parts").append(...PARTS.map(cloneWithOwnIds));
    this.card = new NodeCard(PREFIX);
    this.charts = new HistoryCharts(byId("drawer-history"), byId("history-template"));
  }

  update(node, now) {
    this.entry = node && { node, now };
    if (node) this.card.addSample(node, now);
    else this.failed = true;
  }

  render(now) {
    const name = hashParameters().get("node");
    if (name !== this.name) Object.assign(this, { name, entry: null, failed: false });
    this.poll.tick(name && `api/v1/nodes/${encodeURIComponent(name)}`, now);
    if (name && !this.dialog.open) this.dialog.showModal();
    if (!name && this.dialog.open) this.dialog.close();
    this.charts.tick(name && this.entry ? name : null, now);
    if (!name) return;
    put(byId("drawer-name"), name);
    put(byId("drawer-place"), this.entry?.node.topology ?? "");
    put(byId("drawer-note"), this.entry ? "" : this.failed ? "This daemon knows no node of this name." : "loading");
    byId("drawer-parts").hidden = this.entry === null;
    if (this.entry) this.card.render(this.entry.node, this.entry.now, now);
  }
}

/** A copy of a part of the page, with ids of its own. */
function cloneWithOwnIds(id) {
  const part = byId(id).cloneNode(true);
  for (const element of [part, ...part.querySelectorAll("[id]")]) element.id = PREFIX + element.id;
  return part;
}
