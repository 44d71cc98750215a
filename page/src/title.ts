// What the browser's tab shows, and the colour of its icon. Pure.

import { NO_CLOCK, STATUS_CLASSES, count, duration, roundUp, statusCell, type NodeNow } from "./model.ts";
import type { Headline } from "./types.ts";

export interface Tab {
  title: string;
  colour: string;
}

/** Of the view of one node: its status. */
export function nodeTab(node: string, its: Pick<NodeNow, "mainStatus" | "isUtcOnly">, isLive: boolean): Tab {
  const status = isLive ? statusCell(its.mainStatus, its.isUtcOnly ? "UTC " : "").text : `⚠ no answer, was ${its.mainStatus}`;
  return { title: `${status} ${node} timesyncd`, colour: isLive ? (its.mainStatus === NO_CLOCK ? "quiet" : STATUS_CLASSES[its.mainStatus]) : "quiet" };
}

/** Of a node of which the page has no state. */
export const absentTab = (node: string, isLive: boolean): Tab => ({ title: `${isLive ? "? no state of" : "⚠ no answer,"} ${node} timesyncd`, colour: "quiet" });

/** Of every other view of a fleet: the fleet's worst fact. The hub's own clock may be healthy while others are not. */
export function fleetTab(headline: Headline, hub: string, isLive: boolean): Tab {
  const [sign, text, colour] = worstFact(headline);
  return { title: `${isLive ? sign : "⚠ no answer, was"} ${text} · ${hub} timesyncd`, colour: isLive ? colour : "quiet" };
}

function worstFact({ verdict, alignment_ns: ns, without_bound: without, compared }: Headline): [sign: string, text: string, colour: string] {
  const within = ns === null ? "alignment unknown" : `${count(compared)} clocks within ${duration(ns, roundUp)}`;
  if (verdict === "exceeded") return ["✕", `above the limit: ${within}`, "bad"];
  if (without > 0) return ["▲", `${count(without)} without a bound`, "warn"];
  if (ns === null || verdict === "unknown") return ["?", within, "unknown"];
  return ["●", within, "good"];
}
