// What the daemon's stream delivered, and what every view reads of it.

import { ReceivedStates, type Entry } from "./model.ts";
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

  get isFleet(): boolean {
    return (this.received.fleet?.data.nodes ?? this.overview?.data.headline.nodes ?? 0) > 1;
  }
}

export const state = new State();
