import assert from "node:assert/strict";
import { test } from "node:test";
import { basisText, curvesOf, deviationCells, limitAt, limitCells, nsText, numbersOf, outcomeCell } from "../src/stability.ts";
import type { Deviations, Mask, StabilityReport } from "../src/types.ts";

const at = (tau_s: number, mtie: number, low: number | null = null): Deviations => ({ tau_ns: tau_s * 1e9, adev: 1.5e-9, tdev_ns: mtie / 10, mtie_ns: mtie, tdev_low_ns: low, mtie_low_ns: low });
const report: StabilityReport = {
  interval_ns: 125_000_000, samples: 19_200, gaps: 1, reference_changes: 0, longest_run_ns: 1_200e9, max_abs_te_ns: 42, constant_te_ns: null, worst_constant_te_ns: null,
  constant_te_blocks: 0, max_abs_te_low_ns: 12.3456, range_high_ns: 3, deviations: [at(1, 0), at(64, 30, 2), at(1_024, 60, 9)], verdicts: [], reasons: { cTE: "no 1,000 s without a gap" },
};
const prtc: Mask = { name: "PRTC", limits: [{ quantity: "MTIE", flat_ns: null, segments: [{ after_s: 0.1, until_s: 273, base_ns: 25, slope_ns_per_s: 0.275 }, { after_s: 273, until_s: null, base_ns: 100, slope_ns_per_s: 0 }] }] };
const boundary: Mask = { name: "A", limits: [{ quantity: "dTE_L MTIE", flat_ns: null, segments: [{ after_s: 0, until_s: 1_000, base_ns: 40, slope_ns_per_s: 0 }] }] };

test("a mask's limit is that of its segment, and there is none outside of the mask", () => {
  assert.deepEqual([0.1, 1, 273, 274].map((tau) => limitAt(prtc.limits[0], tau)), [null, 25.275, 100.075, 100]);
  assert.deepEqual([limitAt(boundary.limits[0], 1_001), limitAt(undefined, 1)], [null, null]);
});

test("the chart has the measured points, the corners of the mask between them, and no 0 on its logarithmic axis", () => {
  const { kind, taus, columns } = curvesOf(report, prtc);
  assert.deepEqual([kind, taus], ["raw", [1, 64, 273, 1_024]]);
  assert.deepEqual(columns, [[null, 30, null, 60], [null, 3, null, 6], [25.275, 42.6, 100.075, 100], [null, null, null, null]]);
});

test("for a mask of G.8273.2 the curves are those after the low-pass", () => {
  const { kind, taus, columns } = curvesOf(report, boundary);
  assert.deepEqual([kind, taus, columns[0], columns[2]], ["low", [1, 64, 1_000, 1_024], [null, 2, null, 9], [40, 40, 40, null]]);
  const slow = curvesOf({ ...report, deviations: [at(10, 20), at(64, 30)] }, boundary);
  assert.deepEqual([slow.kind, slow.columns[0], slow.columns[2]], ["low unknown", [20, 30], [null, null]]);
  assert.equal(curvesOf(report, undefined).columns[2]?.every((limit) => limit === null), true);
});

test("each number has its unit, and one that is unknown its reason", () => {
  assert.deepEqual([0.0456, 7, 999.4, 1_234, -0.5].map(nsText), ["0.0456 ns", "7 ns", "999 ns", "1.23 µs", "−0.5 ns"]);
  const numbers = Object.fromEntries(numbersOf(report).map(([key, , text]) => [key, text]));
  assert.deepEqual([numbers.max_abs_te_ns, numbers.constant_te_ns, numbers.max_abs_te_low_ns], ["42 ns", "unknown: no 1,000 s without a gap", "12.3 ns"]);
  assert.deepEqual(deviationCells(at(64, 30)), ["64 s", "1.50e−9", "3 ns", "30 ns", "—", "—"]);
  assert.equal(basisText(report), "19,200 readings, one each 125 ms; 1 gap, 0 changes of the reference; the longest run without either: 20 min");
});

test("a verdict is a sign, a word and its reason", () => {
  const limit = { quantity: "MTIE", source: "G.8272, Table 1", outcome: "not enough data", value_ns: 30, limit_ns: 42.6, tau_s: 64, reason: "to 1024 s only" };
  assert.deepEqual(limitCells(limit), ["MTIE", "G.8272, Table 1", "30 ns at τ 64 s", "42.6 ns", { text: "? not enough data", className: "unknown" }, "to 1024 s only"]);
  assert.deepEqual(["pass", "fail", "new"].map((outcome) => outcomeCell(outcome).text), ["✓ pass", "▲ fail", "? new"]);
});
