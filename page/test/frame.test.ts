import assert from "node:assert/strict";
import { test } from "node:test";
import { liveness } from "../src/liveness.ts";
import { changed, pathOf, routeOf } from "../src/route.ts";
import { storyText, truthsText } from "../src/simulation.ts";
import { absentTab, fleetTab, nodeTab } from "../src/title.ts";
import type { Headline } from "../src/types.ts";
import { DEFAULT_RANGE, limitsOf, panned, rangeOf, rangeParameters, rangeText, spanMs, ticksOf, timeText, zoomed } from "../src/time.ts";

const NOW = Date.parse("2026-11-26T03:04:11Z");

test("a daemon that is silent for more than four seconds turns the page grey, with when the last state was", () => {
  assert.deepEqual(liveness(0, 3_900, "01:24:50 UTC", ""), { isLive: true, text: "● live", banner: "" });
  const silent = liveness(0, 32_000, "01:24:50 UTC", "");
  assert.equal(silent.isLive, false);
  assert.equal(silent.banner, "⚠ no event from the daemon for 32 s: everything below is as of 01:24:50 UTC, 32 s ago");
});

test("a lost connection turns the page grey at once, and before the first state no number claims a time", () => {
  assert.match(liveness(0, 100, "01:24:50 UTC", "connection lost").banner, /connection lost: everything below is as of 01:24:50 UTC, 0 s ago/);
  assert.deepEqual(liveness(null, 100, "", ""), { isLive: false, text: "connecting", banner: "" });
  assert.equal(liveness(null, 100, "", "no answer").banner, "⚠ no answer");
});

test("every view has an address, and a name survives it whatever its characters", () => {
  assert.deepEqual(routeOf("node/trainer-01"), { view: "node", name: "trainer-01" });
  assert.deepEqual(routeOf(pathOf("grandmaster", "<script>/é")), { view: "grandmaster", name: "<script>/é" });
  assert.deepEqual(routeOf(""), { view: null, name: null });
  assert.deepEqual(routeOf("job/%"), { view: "job", name: "%" });
  assert.deepEqual(routeOf("nonsense/x"), { view: null, name: null });
});

test("a parameter is set, replaced and removed", () => {
  assert.equal(String(changed(new URLSearchParams("a=1&b=2"), { a: null, b: "3", c: "4", d: "" })), "b=3&c=4");
});

test("a range is read from the address and written to it alike; nonsense is the default", () => {
  for (const text of ["last=6h", "from=2026-11-26T01%3A00%3A00.000Z&to=2026-11-26T02%3A00%3A00.000Z"]) {
    const written = changed(new URLSearchParams(), rangeParameters(rangeOf(new URLSearchParams(text))));
    assert.equal(rangeOf(written).kind, rangeOf(new URLSearchParams(text)).kind);
    assert.deepEqual(limitsOf(rangeOf(written), NOW), limitsOf(rangeOf(new URLSearchParams(text)), NOW));
  }
  for (const text of ["last=soon", "last=999999d", "from=2026-11-26T02:00:00Z&to=2026-11-26T01:00:00Z"]) assert.deepEqual(rangeOf(new URLSearchParams(text)), DEFAULT_RANGE);
  const demo = { kind: "live", span: "5m", spanMs: 300e3 } as const;
  assert.deepEqual([rangeOf(new URLSearchParams(), demo), rangeParameters(demo, demo).last, rangeParameters(DEFAULT_RANGE, demo).last], [demo, null, "15m"]);
  assert.deepEqual([spanMs("90m"), spanMs("0h"), spanMs("1w")], [5_400e3, null, null]);
});

test("panning and zooming keep the range before now", () => {
  const hour = { kind: "fixed", fromMs: NOW - 7_200e3, toMs: NOW - 3_600e3 } as const;
  assert.deepEqual(limitsOf(panned(hour, -0.25, NOW), NOW), [NOW - 8_100e3, NOW - 4_500e3]);
  assert.deepEqual(limitsOf(panned(hour, 5, NOW), NOW), [NOW - 3_600e3, NOW]);
  assert.deepEqual(limitsOf(zoomed(hour, 0.5, NOW), NOW), [NOW - 6_300e3, NOW - 4_500e3]);
  assert.equal(limitsOf(zoomed(hour, 10, NOW), NOW)[1], NOW);
});

test("a time names its day only where that is not today", () => {
  assert.equal(timeText(NOW - 60e3, "utc", NOW), "03:03:11");
  assert.equal(timeText(NOW - 86_400e3, "utc", NOW), "2026-11-25 03:04:11");
  assert.equal(rangeText({ kind: "live", span: "15m", spanMs: 900e3 }, "utc"), "last 15 min");
});

test("the ticks of a range are round moments, and of days they are dates", () => {
  const texts = (fromMs: number, most: number): string[] => ticksOf(fromMs, NOW, most, "utc").map(({ text }) => text);
  assert.deepEqual(texts(NOW - 300e3, 5), ["03:00", "03:01", "03:02", "03:03", "03:04"]);
  assert.deepEqual(texts(NOW - 60e3, 4), ["03:03:15", "03:03:30", "03:03:45", "03:04:00"]);
  assert.deepEqual(texts(NOW - 3 * 86_400e3, 5), ["11-24", "11-25", "11-26"]);
});

test("a known truth stands beside the bound of its moment, and a sign and a word say whether it is inside", () => {
  const simulation = { simulated: "all", story: "in 5 s: rain", true_offsets: [
    { node: "a", offset_ns: 0, bound_ns: 16_700, is_inside: true },
    { node: "b", offset_ns: -300_000, bound_ns: 200_000, is_inside: false },
    { node: "c", offset_ns: 5, bound_ns: null, is_inside: null },
  ] };
  assert.equal(truthsText(simulation, "03:04:11 UTC"), "True offsets at 03:04:11 UTC: a 0 ns ✓ inside ±16.7 µs · b −300 µs ⚠ OUTSIDE ±200 µs · c 5 ns ? no bound");
  assert.equal(storyText(simulation), "Story: in 5 s: rain");
  assert.equal(truthsText({ ...simulation, true_offsets: [] }, "03:04:11 UTC"), "");
});

test("the tab of a fleet is no greener than its worst clock, whatever the hub's own clock is", () => {
  const tab = (changes: Partial<Headline>): string[] => {
    const { title, colour } = fleetTab({ verdict: "within", alignment_ns: 9_550, without_bound: 0, compared: 150, ...changes } as Headline, "hub", true);
    return [title, colour];
  };
  assert.deepEqual(tab({}), ["● 150 clocks within 9.55 µs · hub timesyncd", "good"]);
  assert.deepEqual(tab({ without_bound: 30 }), ["▲ 30 without a bound · hub timesyncd", "warn"]);
  assert.deepEqual(tab({ without_bound: 30, verdict: "exceeded" }), ["✕ above the limit: 150 clocks within 9.55 µs · hub timesyncd", "bad"]);
  assert.deepEqual(tab({ alignment_ns: null, verdict: "unknown" }), ["? alignment unknown · hub timesyncd", "unknown"]);
  const silent = fleetTab({ verdict: "within", alignment_ns: 9_550, without_bound: 0, compared: 150 } as Headline, "hub", false);
  assert.deepEqual(silent, { title: "⚠ no answer, was 150 clocks within 9.55 µs · hub timesyncd", colour: "quiet" });
});

test("the tab of a node's view has that node's status", () => {
  assert.deepEqual(nodeTab("n9", { mainStatus: "DISRUPTED", isUtcOnly: false }, true), { title: "✕ DISRUPTED n9 timesyncd", colour: "bad" });
  assert.deepEqual(nodeTab("n9", { mainStatus: "NO CLOCK", isUtcOnly: false }, true), { title: "– NO CLOCK n9 timesyncd", colour: "quiet" });
  assert.equal(nodeTab("n9", { mainStatus: "HOLDOVER", isUtcOnly: false }, false).title, "⚠ no answer, was HOLDOVER n9 timesyncd");
});

test("the tab of a node of which there is no state has no status", () => {
  assert.deepEqual(absentTab("n9", true), { title: "? no state of n9 timesyncd", colour: "quiet" });
  assert.equal(absentTab("n9", false).title, "⚠ no answer, n9 timesyncd");
});
