import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { ReceivedStates, aboveText, bound, boundAt, causeFilter, duration, forecast, statusAt, withMicro } from "../src/model.ts";
import { state } from "../src/state.ts";
import type { FleetSummary, NodeState } from "../src/types.ts";

declare const RECORDINGS: string;

test("a bound grows as Bound.at of Python does, by one table", () => {
  const table = JSON.parse(readFileSync(join(RECORDINGS, "bound_growth.json"), "utf8")) as { bound_ns: number | null; growth_ppb: number; age_ns: number; at_ns: number | null }[];
  assert.deepEqual(table.map((each) => boundAt(each, each.age_ns)), table.map((each) => each.at_ns));
});

test("a bound is rounded up, so that it is never understated", () => {
  assert.deepEqual([bound(1001), bound(1100), bound(999), bound(null)], ["±1.01 µs", "±1.10 µs", "±999 ns", "none"]);
  assert.equal(withMicro("within 3.9 us; bus usage 4 users"), "within 3.9 µs; bus usage 4 users");
  assert.deepEqual([duration(-412), duration(null), duration(2_060_001)], ["−412 ns", "—", "2.06 ms"]);
});

test("a published status ages: holdover, then unknown; what is unknown stays unknown", () => {
  const node = { holdover_after_ns: 5e9, void_after_ns: 1e12 };
  assert.deepEqual([0, 5e9, 1e12, null].map((age) => statusAt("SYNCHRONIZED", age, node)), ["SYNCHRONIZED", "HOLDOVER", "UNKNOWN", "SYNCHRONIZED"]);
  assert.equal(statusAt("DISRUPTED", 1e12, node), "DISRUPTED");
  assert.equal(statusAt("UNKNOWN", 0, node), "UNKNOWN");
});

test("the forecast names the next limit only where the bound reaches it before it expires", () => {
  assert.equal(forecast({ bound_ns: 800, growth_ppb: 0 }, 0, 1e12), "expires in 16 min");
  assert.equal(forecast({ bound_ns: 800, growth_ppb: 2_000 }, 0, 1e12), "exceeds 1 µs in under 1 s, expires in 16 min");
  assert.equal(forecast({ bound_ns: null, growth_ppb: 0 }, 0, 1e12), "");
});

test("the forecast is against the operator's limit where one is configured", () => {
  const message = { bound_ns: 4_000, growth_ppb: 1_000 };
  assert.equal(forecast(message, 0, 1e12, 50_000), "exceeds the limit of 50.0 µs in 46 s, expires in 16 min");
  assert.equal(forecast(message, 0, 20e9, 50_000), "expires in 20 s");
  assert.equal(forecast(message, 0, 1e12, 3_000), "above the limit of 3.00 µs, expires in 16 min");
});

test("a bound above the operator's limit is named so, and one at it is not", () => {
  assert.deepEqual([aboveText(11_600, 3_000), aboveText(3_000, 3_000), aboveText(11_600, null), aboveText(null, 3_000)], [", above the limit of 3.00 µs", "", "", ""]);
});

test("a cause leads to a list that has its nodes, also where no list is by what they share", () => {
  assert.deepEqual(causeFilter({ kind: "place", name: "hall-1" }, {}), { topology: "hall-1" });
  assert.deepEqual(causeFilter({ kind: "parent", name: "bc" }, { DISRUPTED: 30, UNKNOWN: 0 }), { status: "DISRUPTED" });
  assert.deepEqual(causeFilter({ kind: "reason", name: "stale" }, { UNKNOWN: 2 }), { status: "UNKNOWN" });
});

test("a fleet is where a node reports besides the daemon's own, which is counted only where it has a clock", () => {
  const isFleet = (nodes: number, sources: unknown[]): boolean => {
    state.received = new ReceivedStates();
    state.received.update("node", { node: "hub", sources, age_ns: null } as unknown as NodeState, 0);
    state.received.update("fleet", { nodes } as FleetSummary, 0);
    return state.isFleet;
  };
  assert.deepEqual([isFleet(1, [{}]), isFleet(2, [{}]), isFleet(0, []), isFleet(1, [])], [false, true, false, true]);
});
