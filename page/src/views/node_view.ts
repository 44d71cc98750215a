// The view of one node: this daemon's own from the stream, another by requests while a reader looks at it.

import { Poll } from "../api.ts";
import { byId, put } from "../dom.ts";
import type { Entry } from "../model.ts";
import { place } from "../place.ts";
import { state } from "../state.ts";
import type { NodeState } from "../types.ts";
import { renderNode } from "./node.ts";
import { NodeCharts } from "./node_charts.ts";
import { StabilitySection } from "./stability.ts";

const NODE_EVERY_MS = 2_000;
const PARTS = ["hero", "band-section", "stack-section", "forecast-section", "sources-section", "terms-section"];

export class NodeView {
  private readonly charts = new NodeCharts();
  private readonly stability = new StabilitySection(byId("node-stability"), "G.8273.2 class A");
  private other: Entry<NodeState> | null = null;
  private name: string | null = null;
  private hasFailed = false;
  private readonly poll = new Poll<NodeState>(NODE_EVERY_MS, (node, now) => {
    this.other = node && { data: node, receivedAt: now };
    this.hasFailed = node === null;
    if (node) this.charts.add(node, now);
  });

  /** The state that the view shows; undefined: none yet. */
  get shown(): Entry<NodeState> | undefined {
    return this.name === state.received.own ? state.received.node.get(this.name ?? "") : (this.other ?? undefined);
  }

  /** A state of the daemon's own node arrived. */
  received(node: NodeState, now: number): void {
    if (this.name === node.node) this.charts.add(node, now);
  }

  render(now: number): void {
    const own = state.received.own;
    const name = place.route.name ?? own;
    if (name !== this.name) this.select(name, now);
    this.poll.tick(name === null || name === own ? null : `api/v1/nodes/${encodeURIComponent(name)}`, now);
    const entry = this.shown;
    put(byId("node-note"), entry ? "" : this.hasFailed ? `This daemon knows no node named ${name}.` : "loading");
    byId("node-note").hidden = Boolean(entry);
    for (const part of PARTS) byId(part).hidden = !entry;
    byId("node-stability").hidden = !entry;
    if (!entry) return;
    place.asOfNs = entry.data.published_realtime_ns;
    renderNode(entry.data, entry.receivedAt, now);
    this.charts.render(entry.data, now);
    const sources = entry.data.sources.filter(({ kind }) => kind === "ptp" || kind === "utc").map((source) => source.name);
    this.stability.render({ node: name === own ? null : name, name: entry.data.node, sources, isGrandmaster: false }, now);
  }

  private select(name: string | null, now: number): void {
    Object.assign(this, { name, other: null, hasFailed: false });
    const entry = name === null ? undefined : state.received.node.get(name);
    if (entry) this.charts.add(entry.data, now);
  }
}
