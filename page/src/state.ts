// What the daemon's stream delivered, and what every view reads of it.

import { ReceivedStates, type Entry } from "./model.ts";
import type { HandledFinding, Overview } from "./types.ts";

class State {
  received = new ReceivedStates();
  overview: Entry<Overview> | null = null;
  /** Who took which active finding. */
  handled: HandledFinding[] = [];

  handledBy(finding: string, subject: string): HandledFinding | undefined {
    return this.handled.find((each) => each.finding === finding && each.subject === subject);
  }

  get isFleet(): boolean {
    return (this.received.fleet?.data.nodes ?? this.overview?.data.headline.nodes ?? 0) > 1;
  }
}

export const state = new State();
