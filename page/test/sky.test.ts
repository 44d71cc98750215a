import assert from "node:assert/strict";
import { test } from "node:test";
import { skyPoints } from "../src/sky.ts";

test("north is up, east is right, overhead is the middle, and a satellite without a direction is not drawn", () => {
  const at = (number: number, azimuth_deg: number | null, elevation_deg: number | null, healthy: boolean | null = true) => ({ number, cn0_db_hz: 40, healthy, azimuth_deg, elevation_deg });
  const points = skyPoints([at(1, 0, 0), at(2, 90, 0), at(3, 200, 90, false), at(4, null, 45), at(5, 10, null), at(6, 10, -3), at(7, 180, 45, null)]);
  assert.deepEqual(points.map(({ number, x, y }) => [number, Math.round(x), Math.round(y)]), [[1, 100, 16], [2, 184, 100], [3, 100, 100], [7, 100, 142]]);
  assert.deepEqual(points.map(({ isHealthy }) => isHealthy), [true, true, false, false]);
  assert.equal(points[3]?.text, "satellite 7: azimuth 180°, elevation 45°, 40 dB-Hz, health not provided");
});
