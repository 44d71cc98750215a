// A chart of many points, for bench/page_browser.py: how long its first drawing takes, and a frame while its range moves.

import { TimeChart } from "../src/chart.ts";

export async function measure(count: number): Promise<{ firstMs: number; frameMs: number[] }> {
  const host = document.createElement("div");
  document.getElementById("main")?.prepend(host);
  const now = Date.now();
  const times = Array.from({ length: count }, (_, at) => now - (count - at) * 8);
  const values = times.map((at) => 1_500 + 400 * Math.sin(at / 60_000) + 200 * Math.sin(at * 7.1));
  const began = performance.now();
  const chart = new TimeChart(host, { name: "points", height: 280, lines: [{ label: "offset", colour: "series-1" }] });
  chart.set({ times, values: [values] });
  const firstMs = performance.now() - began;
  const frameMs: number[] = [];
  for (let frame = 0; frame < 120; frame += 1) {
    await new Promise(requestAnimationFrame);
    const start = performance.now();
    chart.redraw();
    frameMs.push(performance.now() - start);
  }
  host.remove();
  return { firstMs, frameMs };
}
