import assert from "node:assert/strict";
import { test } from "node:test";
import { ticks } from "../src/bars.ts";
import { chainOf, shortened } from "../src/chain.ts";
import { labelFrom } from "../src/chart.ts";
import { columnsOf } from "../src/dense.ts";
import { EARLY, NOTHING, NO_BOUND, WITHIN_ERROR, columnAt, paint, zoomedPort } from "../src/heat.ts";
import { flagsOf, lanesOf, placedBars, type LaneBar } from "../src/lanes.ts";
import { covered, latenessCells, latenessOf, lateShare, latenessText, stepParts, type LatenessAnswer } from "../src/lateness.ts";
import { RackHistory, boundShare, fleetNumbers, shortNames } from "../src/racks.ts";
import { Track, aligned, held, joined, originText, quantile, withGaps } from "../src/track.ts";
import type { Arrival, ChainGroup, Finding, FleetMap } from "../src/types.ts";

test("a pause leaves a row of nulls, so that a chart shows the gap", () => {
  const track = new Track(1, 5_000);
  for (const at of [0, 2_000, 2_000, 20_000]) track.add(at, [at]);
  assert.deepEqual([track.times, track.values], [[0, 2_000, 4_500, 20_000], [[0, 2_000, null, 20_000]]]);
  assert.deepEqual(withGaps([0, 1, 2, 9], [1, 2, 3, 4]), { times: [0, 1, 2, 3, 9], values: [1, 2, 3, null, 4] });
});

test("on a grid that is finer than the readings each holds until the next one, and a long pause is a gap", () => {
  const [none, readings] = [null, [5, null, 6, null, 4, null, null, null, null, null, null, null, 7, null]];
  const other = readings.map((_, at) => (at === 2 ? 9 : none));
  assert.deepEqual(held([readings, other]), [
    [5, 5, 6, 6, 4, none, none, none, none, none, none, none, 7, 7], readings.map((_, at) => (at === 2 || at === 3 ? 9 : none)),
  ]);
});

test("stored values end where live ones begin", () => {
  assert.deepEqual(joined({ times: [1, 2, 3], values: [[1, 2, 3]] }, { times: [3, 4], values: [[30, 40]] }), { times: [1, 2, 3, 4], values: [[1, 2, 30, 40]] });
  assert.deepEqual(joined({ times: [5], values: [[5]] }, { times: [1], values: [[1]] }), { times: [5], values: [[5]] });
  assert.deepEqual(aligned([{ times: [1, 3], values: [1, 3] }, { times: [2], values: [20] }]), { times: [1, 2, 3], values: [[1, null, 3], [null, 20, null]] });
  assert.deepEqual([quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.99), quantile([], 0.5)], [2, 4, null]);
});

test("a caption says where the values of its time range are from, and of a past range not what came later", () => {
  const text = (isStored: boolean, live: number[], fixed: [number, number] | null): string => originText(isStored, live, fixed, String);
  assert.deepEqual([text(true, [50], null), text(true, [50], [10, 20]), text(true, [15], [10, 20])], ["from the daemon's store, and live", "from the daemon's store", "from the daemon's store, and live"]);
  assert.deepEqual([text(false, [50], null), text(false, [5, 15], [10, 20])], ["readings since 50, when this page was opened", "readings since 5, when this page was opened"]);
  assert.deepEqual([text(false, [], null), text(false, [50], [10, 20])], ["no reading yet", "no reading in this time range"]);
});

const group = (changes: Partial<ChainGroup>): ChainGroup => ({ grandmaster: "gm-a", grandmaster_identity: "a", parent_identity: "a", place: "r1", nodes: 10, without_bound: 0, bound_ns: 900, ...changes });
const gm = { name: "gm-a", identities: ["a"], reachable: true, clock_state: "locked", gnss_state: "locked", antenna: "open", followers: 10 };

test("the chain leads from GNSS to the jobs, counts each clock once in a layer, and marks what is broken", () => {
  const { nodes, links } = chainOf({ chain: [group({}), group({ place: "r2", nodes: 5, without_bound: 5, bound_ns: null, parent_identity: "bc" })], grandmasters: [gm], jobs: [{ job_id: "1", job: "llm", places: { r1: 16 } }] });
  const layer = (wanted: number): [string, number, number][] => nodes.filter(({ layer: its }) => its === wanted).map(({ name, nodes: clocks, without }) => [name, clocks, without]);
  assert.deepEqual(layer(0), [["GNSS of gm-a", 15, 5]]);
  assert.deepEqual(layer(2), [["no boundary clock", 10, 0], ["bc", 5, 5]]);
  assert.deepEqual(layer(3), [["r1", 10, 0], ["r2", 5, 5]]);
  assert.deepEqual(layer(4), [["llm", 10, 0], ["no job", 5, 5]]);
  assert.equal(nodes.find(({ layer: its }) => its === 0)?.isBroken, true);
  assert.equal(links.reduce((sum, { nodes: clocks }) => sum + clocks, 0), 15 * 4);
  const narrow = chainOf({ chain: [group({})], grandmasters: [gm], jobs: [] }, true);
  assert.deepEqual(narrow.nodes.map(({ name }) => name), ["gm-a", "r1"]);
});

test("too many places are named by the place above", () => {
  const places = Array.from({ length: 60 }, (_, rack) => `hall-${rack % 3}/rack-${rack}`);
  assert.deepEqual([...new Set(shortened(places).values())].sort(), ["hall-0", "hall-1", "hall-2"]);
});

const map = (bound: number | null): FleetMap => ({ published_realtime_ns: 0, places: { "h/r1": [["a", "SYNCHRONIZED", bound], ["b", bound === null ? "UNKNOWN" : "HOLDOVER", bound]] } });

test("a rack with a node without a bound has no bound, and a step without a reading is a gap", () => {
  const history = new RackHistory(10_000);
  history.add(0, map(1_000));
  history.add(5_000, map(100_000));
  history.add(30_000, map(null));
  const { rows, cells, places } = history.matrix(0, 40_000, String);
  assert.deepEqual([rows, places], [["r1"], ["h/r1"]]);
  assert.deepEqual([...cells], [Math.fround(boundShare(100_000)), NOTHING, NOTHING, NO_BOUND]);
  const stored = { begin_ms: 0, step_ms: 20_000, steps: 2, racks: ["h/r1", "h/r2"], widest_bound_ns: [[null, 900], [900, null]], without_bound: [[0, 0], [1, null]] };
  const both = history.matrix(0, 40_000, String, stored);
  const [wide, narrow] = [Math.fround(boundShare(100_000)), Math.fround(boundShare(900))];
  assert.deepEqual([...both.cells], [wide, NOTHING, narrow, NO_BOUND, NO_BOUND, NO_BOUND, NOTHING, NOTHING]);
  assert.deepEqual(shortNames(["a/r1", "b/r1", "a/r2", ""]), ["a/r1", "b/r1", "r2", "no place"]);
  assert.deepEqual(fleetNumbers(map(null)), { p50Ns: null, p99Ns: null, worstNs: null, without: 2 });
});

const arrival = (rank: number, at: number, error: number | null = 10_000): Arrival => ({ rank, clock: `n${rank}`, arrival_ns: at, begin_ns: at, end_ns: 60_000_000, error_ns: error });

const latenessAnswer = (numbers: Int32Array, begins: (number | null)[] = [10, 20, 30]): LatenessAnswer => ({
  as_of_realtime_ns: 0, ranks: [0, 1], nodes: ["a", "b"], steps: [7, 8, 9], begins_ms: begins, error_ns: [55_000, 55_000, null], unit_ns: 1_000, lateness: Buffer.from(numbers.buffer).toString("base64"),
});

test("a lateness within the clocks' error is grey, and so is one whose error is unknown", () => {
  const numbers = Int32Array.from([0, 39_800, 0, -(2 ** 31), 0, 39_800]);
  const lateness = latenessOf(latenessAnswer(numbers), [0, 100]);
  assert.deepEqual([...latenessCells(lateness)], [WITHIN_ERROR, WITHIN_ERROR, WITHIN_ERROR, Math.fround(lateShare(39_800_000)), NOTHING, WITHIN_ERROR]);
});

test("a rank that is clearly early is not within the clocks' error", () => {
  const cells = latenessCells({ lateNs: Float64Array.from([-58_000, -5_000, 5_600, 58_000, -58_000]), errorNs: Float64Array.from([5_600, 5_600, 5_600, 5_600, NaN]) });
  assert.deepEqual([...cells], [EARLY, WITHIN_ERROR, WITHIN_ERROR, Math.fround(lateShare(58_000)), WITHIN_ERROR]);
  assert.equal(latenessText(-58_000, 5_600), "58.0 µs before the median rank, ±5.60 µs");
  assert.equal(latenessText(-5_000, 5_600), "5.00 µs before the median rank, ±5.60 µs, within the clocks' error");
  assert.deepEqual([latenessText(58_000, NaN), latenessText(NaN, 5_600)], ["58.0 µs after the median rank, error unknown", "unknown"]);
});

test("only the steps that are known to begin in the time range are shown", () => {
  const answer = latenessAnswer(Int32Array.from([1, 2, 3, 4, 5, 6]), [10, 20, null]);
  const shown = latenessOf(answer, [15, 100]);
  assert.deepEqual([shown.steps, shown.beginsMs, [...shown.lateNs], [...shown.errorNs]], [[8], [20], [3_000, 4_000], [55_000]]);
  assert.deepEqual(latenessOf(answer, [30, 100]).steps, []);
  assert.deepEqual([...latenessOf(answer, [10, 20]).lateNs], [1_000, 3_000, 2_000, 4_000]);
});

test("a step's time is computing, transfer and waiting, and a rank is named only beyond the clocks' error", () => {
  const sync = { step: 7, sync: 0, kind: 6, arrivals: [arrival(0, 10_000_000), arrival(1, 50_000_000)] };
  const steps = [0, 1].map((rank) => ({ rank, step: 7, arrival_ns: 0, ready_ns: null, end_ns: 60_000_000 }));
  assert.deepEqual(stepParts({ syncs: [sync], steps }), [{ step: 7, computeNs: 30_000_000, hiddenNs: 0, exposedNs: 10_000_000, waitNs: 20_000_000, lastRank: 1 }]);
  const close = { ...sync, arrivals: [arrival(0, 10_000_000), arrival(1, 10_015_000)] };
  assert.equal(stepParts({ syncs: [close], steps })[0]?.lastRank, null);
  assert.equal(stepParts({ syncs: [{ ...sync, arrivals: [arrival(0, 0, null), arrival(1, 50_000_000)] }], steps })[0]?.lastRank, null);
});

test("what is transferred before a rank's gradients are ready is hidden, and the parts add up to the step", () => {
  const first = { step: 7, sync: 0, kind: 6, arrivals: [{ ...arrival(0, 10_000_000), end_ns: 25_000_000 }, { ...arrival(1, 12_000_000), end_ns: 25_000_000 }] };
  const second = { step: 7, sync: 1, kind: 6, arrivals: [{ ...arrival(0, 30_000_000), end_ns: 50_000_000 }, { ...arrival(1, 40_000_000), end_ns: 50_000_000 }] };
  const steps = [[0, 30_000_000], [1, 40_000_000]].map(([rank, ready]) => ({ rank: rank as number, step: 7, arrival_ns: 0, ready_ns: ready as number, end_ns: 55_000_000 }));
  const [parts] = stepParts({ syncs: [first, second], steps });
  assert.deepEqual(parts, { step: 7, computeNs: 27_000_000, hiddenNs: 13_000_000, exposedNs: 10_000_000, waitNs: 5_000_000, lastRank: 1 });
  assert.deepEqual([covered([[0, 4], [2, 6], [8, 20]], [1, 10]), covered([], [0, 1])], [7, 0]);
});

test("a thousand ranks by five hundred steps are painted as pixels", () => {
  const cells = new Float32Array(500_000).map((_, at) => (at % 5) - 4);
  const pixels = new Uint32Array(cells.length);
  paint(cells, new Uint32Array(256).fill(5), [1, 2, 3, 4], pixels);
  assert.deepEqual([...pixels.slice(0, 5)], [4, 3, 2, 1, 5]);
});

test("a heat map's zoom keeps the cell under the pointer and stays inside", () => {
  const whole = { row: 0, column: 0, rows: 100, columns: 100 };
  assert.deepEqual(zoomedPort(whole, 0.5, 50, 50, 100, 100), { row: 25, column: 25, rows: 50, columns: 50 });
  assert.deepEqual(zoomedPort({ row: 25, column: 25, rows: 50, columns: 50 }, 4, 50, 50, 100, 100), whole);
});

test("ticks are round", () => {
  assert.deepEqual([ticks(90), ticks(0)], [[0, 25, 50, 75], [0]]);
});

const finding = (changes: Partial<Finding>): Finding => ({ id: "a", severity: "warning", subject: "gm-2", since_realtime_ns: 10, until_realtime_ns: 20, evidence: "e", cause: "c", remedy: "r", chain: [], ...changes });

test("an arrow leads from the finding that a chain names to its effect on another subject", () => {
  const effect = finding({ id: "b", subject: "n1", since_realtime_ns: 15, until_realtime_ns: null, chain: [{ code: "a", text: "antenna" }, { code: "x", text: "" }] });
  const lanes = lanesOf([effect, finding({})], 100);
  assert.deepEqual(lanes.map(({ name }) => name), ["gm-2", "n1"]);
  assert.deepEqual(lanes[1]?.arrows, [{ fromLane: 0, toLane: 1, atNs: 10, toNs: 15 }]);
  assert.deepEqual(lanes[1]?.bars.map(({ toNs, isOpen }) => [toNs, isOpen]), [[100, true]]);
});

test("an operator's note is in a lane of its own, signed", () => {
  const note = { id: "1", kind: "silence", author: "ada", text: "known", subject: "gm-2", finding: "a", realtime_ns: 12, until_realtime_ns: 30 } as const;
  assert.deepEqual(lanesOf([], 100, [note]).map(({ name, bars }) => [name, bars[0]?.text, bars[0]?.fromNs, bars[0]?.toNs]), [["notes", "silence by ada: known", 12, 30]]);
});

const bar = (fromNs: number, toNs: number, text: string, severity: LaneBar["severity"] = "warning"): LaneBar => ({ fromNs, toNs, isOpen: true, text, evidence: "", severity });

test("bars and texts of a lane cover one another nowhere, and a text at the end of the time range is left of its bar", () => {
  const bars = placedBars([bar(100, 140, "a long text of a bar"), bar(120, 900, "another one"), bar(500, 500, "third")], Number, 0, 1_000, 7);
  assert.deepEqual(bars.map(({ row }) => row), [0, 1, 0]);
  const [late] = placedBars([bar(980, 980, "a note near the end", "note")], Number, 0, 1_000, 7);
  assert.deepEqual([late?.isLeft, late?.textX, late?.letters], [true, 974, 139]);
  const [narrow] = placedBars([bar(180, 180, "a note that is longer than the picture is wide", "note")], Number, 0, 200, 7);
  assert.deepEqual([narrow?.isLeft, narrow?.letters], [true, 24]);
});

test("what finds no row of its own has no text, and no text is cut to a few letters", () => {
  const many = Array.from({ length: 14 }, (_, at) => bar(at, at, "the same moment", "note"));
  assert.deepEqual(placedBars(many, Number, 0, 1_000, 7).map(({ row, letters }) => [row, letters > 0]), many.map((_, at) => [Math.min(at, 9), at < 10]));
  assert.equal(placedBars([bar(45, 45, "too long for so narrow a picture")], Number, 0, 100, 7)[0]?.letters, 0);
});

test("the marked moment is in the column that begins before it, and outside the columns in none", () => {
  const times = [1_000, 2_000, 3_000];
  assert.deepEqual([999, 1_000, 2_999, 3_999, 4_000, null].map((at) => columnAt(times, at)), [null, 0, 1, 2, null, null]);
  assert.equal(columnAt([], 5), null);
});

test("an event of the node or of its grandmaster is a flag that says what changed, and one of another grandmaster is none", () => {
  const event = (type: string, subject: string, value: unknown): Parameters<typeof flagsOf>[0] => ({ type: `event.sync.${type}`, subject, time: "2026-11-26T03:04:11Z", data: { values: [{ value }] } });
  const texts = [
    event("sync-status.synchronization-state-change", "n1", "HOLDOVER"), event("sync-status.synchronization-state-change", "n1", "LOCKED"),
    event("sync-status.synchronization-state-change", "n1", "FREERUN"), event("ptp-status.ptp-clock-class-change", "gm-1", 7),
    event("gnss-status.gnss-state-change", "gm-1", "FAILURE-NOFIX"), event("ptp-status.ptp-state-change", "gm-2", "HOLDOVER"),
  ].flatMap((each) => flagsOf(each, ["n1", "gm-1"])).map(({ text }) => text);
  assert.deepEqual(texts, ["HOLDOVER", "SYNCHRONIZED", "no bound", "gm-1 clock class 7", "gm-1 GNSS FAILURE-NOFIX"]);
});

test("the label of a line is beside it, at the end of a chart on its left", () => {
  assert.deepEqual([labelFrom(10, 50, 100, 4), labelFrom(46, 50, 100, 4), labelFrom(47, 50, 100, 4)], [14, 50, -7]);
});

test("far more points than pixels are the lowest and highest of each column, and a hole ends a run", () => {
  const values = [5, 1, 9, 4, null, 7, 8];
  assert.deepEqual(columnsOf([0, 1, 2, 3, 4, 5, 6], values, 0, 6, (at) => at / 2.1), [
    [{ x: 0, low: 1, high: 5 }, { x: 1, low: 4, high: 9 }], [{ x: 2, low: 7, high: 7 }, { x: 3, low: 7, high: 8 }],
  ]);
});
