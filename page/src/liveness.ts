// Whether the daemon still answers, as the whole page shows it. Pure; times are milliseconds of one clock.

import { elapsedText } from "./model.ts";

/** The daemon publishes its own node's state each second or two. After this time the page turns grey, within 5 s of the last state. */
export const SILENT_AFTER_MS = 4_000;

export interface Liveness {
  isLive: boolean;
  /** One line for the header. */
  text: string;
  /** The line of the banner; "": no banner. */
  banner: string;
}

/** In place of a subject of which the page has no state. */
export const NOT_LOADED = "not loaded: the daemon does not answer";

/** `lastMs` is when the last state arrived, null: none yet; `asOf` is that moment as text; `fault` is why the connection is down, or "". */
export function liveness(lastMs: number | null, nowMs: number, asOf: string, fault: string): Liveness {
  if (lastMs === null) {
    return fault === "" ? { isLive: false, text: "connecting", banner: "" } : { isLive: false, text: `⚠ ${fault}`, banner: `⚠ ${fault}` };
  }
  const silentMs = nowMs - lastMs;
  const isSilent = silentMs > SILENT_AFTER_MS;
  if (!isSilent && fault === "") return { isLive: true, text: "● live", banner: "" };
  const why = fault || `no event from the daemon for ${elapsedText(silentMs)}`;
  return { isLive: false, text: `⚠ ${why}`, banner: `⚠ ${why}: everything below is as of ${asOf}, ${elapsedText(silentMs)} ago` };
}
