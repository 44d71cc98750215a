// The view of one node: this daemon's own from the stream, another by requests while a reader looks at it.

import { Poll } from "../api.ts";
import { byId, put } from "../dom.ts";
import { NOT_LOADED } from "../liveness.ts";
import type { Entry } from "../model.ts";
import { place } from "../place.ts";
import { state } from "../state.ts";
import type { NodeState } from "../types.ts";
import { renderNode } from "./node.ts";
import { NodeCharts } from "./node_charts.ts";
import { StabilitySection } from "./stability.ts";

const NODE_EVERY_MS = 2_000;
const UNKNOWN_NODE = 404;
const PARTS = ["hero", "band-section", "stack-section", "forecast-section", "sources-section", "terms-section", "history", "node-stability"];

export class NodeView {
  private readonly charts = new NodeCharts();
  private readonly stability = new StabilitySection(byId("node-stability"), "G.8273.2 class A");
  private other: Entry<NodeState> | null = null;
  private name: string | null = null;
  /** That of the last answer; null: no answer came; undefined: none yet. */
  private status: number | null | undefined;
  private readonly poll = new Poll<NodeState>(NODE_EVERY_MS, (node, now, status) => {
    this.status = status;
    if (status === UNKNOWN_NODE) this.other = null;
    if (node === null) return;
    this.other = { data: node, receivedAt: now };
    this.charts.add(node, now);
  });

  /** The node that the address names; null: no state arrived yet, so the daemon's own is not known. */
  get wanted(): string | null {
    return place.route.name ?? state.received.own;
  }

  /** Its state; undefined: none yet. */
  get shown(): Entry<NodeState> | undefined {
    const { wanted } = this;
    if (wanted === state.received.own) return state.received.node.get(wanted ?? "");
    return wanted === this.name ? (this.other ?? undefined) : undefined;
  }

  /** A state of the daemon's own node arrived. */
  received(node: NodeState, now: number): void {
    if (this.name === node.node) this.charts.add(node, now);
  }

  render(now: number): void {
    const own = state.received.own;
    const name = this.wanted;
    if (name !== this.name) this.select(name, now);
    this.poll.tick(name === null || name === own ? null : `api/v1/nodes/${encodeURIComponent(name)}`, now);
    const entry = this.shown;
    put(byId("node-note"), entry ? "" : this.absentText());
    byId("node-note").hidden = Boolean(entry);
    for (const part of PARTS) byId(part).hidden = !entry;
    if (!entry) return;
    place.asOfNs = entry.data.published_realtime_ns;
    renderNode(entry.data, entry.receivedAt, now);
    this.charts.render(entry.data, now);
    const sources = entry.data.sources.filter(({ kind }) => kind === "ptp" || kind === "utc").map((source) => source.name);
    this.stability.render({ node: name === own ? null : name, name: entry.data.node, sources, isGrandmaster: false }, now);
  }

  private absentText(): string {
    if (this.status === UNKNOWN_NODE) return `This daemon knows no node named ${this.name}.`;
    return this.status === null || !state.isLive ? NOT_LOADED : "loading";
  }

  private select(name: string | null, now: number): void {
    Object.assign(this, { name, other: null, status: undefined });
    const entry = name === null ? undefined : state.received.node.get(name);
    if (entry) this.charts.add(entry.data, now);
  }
}
