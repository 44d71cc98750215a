// The page of one node of the fleet: what its own status page would show, and its past.

import { Poll, address, wanted } from "./ask.js";
import { byId, put } from "./dom.js";
import { NodeCard } from "./node.js";
import { Past } from "./past.js";

const NODE_EVERY_MS = 2_000;
const PARTS = ["hero", "sources-section", "terms-section"];
const PREFIX = "one-";

export class Drawer {
  constructor() {
    this.box = byId("drawer");
    this.entry = null;
    this.poll = new Poll(NODE_EVERY_MS, (answer, now) => this.take(answer, now));
    byId("drawer-close").addEventListener("click", () => { location.hash = address({ node: null }); });
    this.box.addEventListener("cancel", (event) => {
      event.preventDefault();
      location.hash = address({ node: null });
    });
    byId("drawer-parts").append(...PARTS.map(copied));
    this.card = new NodeCard(PREFIX);
    this.past = new Past(byId("drawer-past"), byId("history-template"));
  }

  take(node, now) {
    this.entry = node && { node, now };
    if (node) this.card.take(node, now);
    else this.failed = true;
  }

  render(now) {
    const name = wanted().get("node");
    if (name !== this.name) Object.assign(this, { name, entry: null, failed: false });
    this.poll.tick(name && `api/v1/nodes/${encodeURIComponent(name)}`, now);
    if (name && !this.box.open) this.box.showModal();
    if (!name && this.box.open) this.box.close();
    this.past.tick(name && this.entry ? name : null, now);
    if (!name) return;
    put(byId("drawer-name"), name);
    put(byId("drawer-place"), this.entry?.node.topology ?? "");
    put(byId("drawer-note"), this.entry ? "" : this.failed ? "No node of this name is known here." : "asking");
    byId("drawer-parts").hidden = this.entry === null;
    if (this.entry) this.card.render(this.entry.node, this.entry.now, now);
  }
}

/** A part of the page once more, with ids of its own. */
function copied(id) {
  const part = byId(id).cloneNode(true);
  for (const element of [part, ...part.querySelectorAll("[id]")]) element.id = PREFIX + element.id;
  return part;
}
