// What the daemon's stream delivered, and what every view reads of it.

import { ReceivedStates, hasClock, type Entry } from "./model.ts";
import type { HandledFinding, Overview } from "./types.ts";

class State {
  received = new ReceivedStates();
  overview: Entry<Overview> | null = null;
  /** Whether the daemon answers. */
  isLive = false;
  /** Who took which active finding. */
  handled: HandledFinding[] = [];

  handledBy(finding: string, subject: string): HandledFinding | undefined {
    return this.handled.find((each) => each.finding === finding && each.subject === subject);
  }

  /** The name of the grandmaster with this clock identity, where this daemon knows one: a node may publish the identity alone. */
  grandmasterName(identity: string | null): string | null {
    if (identity === null) return null;
    return [...this.received.grandmaster.values()].find(({ data }) => data.identities.includes(identity))?.data.name ?? null;
  }

  /** The operator's; null: none is configured, or not known yet. */
  get jobLimitNs(): number | null {
    return this.overview?.data.headline.limits.job_alignment_ns ?? null;
  }

  /** Whether there is a node besides the daemon's own. Without a clock that is not counted among the fleet's. */
  get isFleet(): boolean {
    const own = this.received.node.get(this.received.own ?? "");
    const counted = own === undefined || hasClock(own.data) ? 1 : 0;
    return (this.received.fleet?.data.nodes ?? this.overview?.data.headline.nodes ?? 0) > counted;
  }
}

export const state = new State();
