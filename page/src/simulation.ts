// In a demo or a lab: what is simulated, the newest line of its story, and each known truth beside the bound of its moment.

import { byId, put } from "./dom.ts";
import { bound, duration, withMicro } from "./model.ts";
import { atZone, place } from "./place.ts";
import { DEMO_RANGE } from "./time.ts";
import type { Overview, SimulationState } from "./types.ts";

export const storyText = ({ story }: SimulationState): string => (story === "" ? "" : `Story: ${withMicro(story)}`);

/** A sign and a word say what a color says elsewhere. Pure. */
export function truthsText({ true_offsets: truths }: SimulationState, moment: string): string {
  const texts = truths.map(({ node, offset_ns: offset, bound_ns: ns, is_inside: isInside }) => {
    const judged = isInside === null ? "? no bound" : `${isInside ? "✓ inside" : "⚠ OUTSIDE"} ${bound(ns)}`;
    return `${node} ${duration(offset)} ${judged}`;
  });
  return texts.length === 0 ? "" : `True offsets at ${moment}: ${texts.join(" · ")}`;
}

export function renderSimulation(overview: Overview | null): void {
  const simulation = overview?.simulation ?? null;
  byId("simulation").hidden = simulation === null;
  if (simulation === null) return;
  place.usualRange = DEMO_RANGE;
  put(byId("simulation-story"), storyText(simulation));
  put(byId("simulation-truths"), truthsText(simulation, atZone(overview?.as_of_realtime_ns ?? 0)), simulation.true_offsets.some(({ is_inside: isInside }) => isInside === false) ? "bad" : "");
  put(byId("simulation-what"), simulation.simulated);
}
