// What bench/page_browser.py moves beside the page's own pictures: a chart of many points, and the lateness of many ranks.

import { TimeChart } from "../src/chart.ts";
import { HeatMap } from "../src/heat.ts";

const frame = (): Promise<number> => new Promise(requestAnimationFrame);

function host(): HTMLElement {
  const element = document.createElement("div");
  document.getElementById("main")?.prepend(element);
  return element;
}

/** How long the first drawing takes; then the range moves, as it does while it is live. */
export async function points(count: number, frames: number): Promise<number> {
  const element = host();
  const now = Date.now();
  const times = Array.from({ length: count }, (_, at) => now - (count - at) * 8);
  const values = times.map((at) => 1_500 + 400 * Math.sin(at / 60_000) + 200 * Math.sin(at * 7.1));
  const began = performance.now();
  const chart = new TimeChart(element, { name: "points", height: 280, lines: [{ label: "offset", colour: "series-1" }] });
  chart.set({ times, values: [values] });
  const firstMs = performance.now() - began;
  for (let at = 0; at < frames; at += 1) {
    await frame();
    chart.redraw();
  }
  element.remove();
  return firstMs;
}

/** How long the first drawing takes; then a drag moves the zoomed picture. */
export async function lateness(ranks: number, steps: number, frames: number): Promise<number> {
  const element = host();
  const cells = new Float32Array(ranks * steps).map((_, at) => ((at * 7_919) % 1_000) / 1_000);
  const began = performance.now();
  const map = new HeatMap(element, {
    name: "lateness", height: 360, stops: ["late-1", "late-2", "late-3", "late-4"], cellText: () => "",
    scale: { name: "late", from: "", to: "", others: [] },
  });
  map.set({ rows: Array.from({ length: ranks }, (_, rank) => `rank ${rank}`), columns: Array.from({ length: steps }, (_, step) => String(step)), cells });
  const firstMs = performance.now() - began;
  await drag(map.canvas, frames);
  element.remove();
  return firstMs;
}

/** Zooms into a heat map and moves it once a frame. */
export async function drag(canvas: HTMLCanvasElement, frames: number): Promise<void> {
  canvas.scrollIntoView({ block: "center" });
  const { x, y, width, height } = canvas.getBoundingClientRect();
  const at = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true };
  for (let step = 0; step < 6; step += 1) canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -100, shiftKey: true, cancelable: true }));
  canvas.dispatchEvent(new PointerEvent("pointerdown", { ...at, button: 0, buttons: 1, pointerId: 1 }));
  for (let step = 0; step < frames; step += 1) {
    await frame();
    canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX: at.clientX + 90 * Math.sin(step / 9), buttons: 1, pointerId: 1 }));
  }
  canvas.dispatchEvent(new PointerEvent("pointerup", { ...at, pointerId: 1 }));
}

/** Scrolls an element up and down, a step a frame. */
export async function scroll(element: HTMLElement, frames: number): Promise<void> {
  element.scrollIntoView({ block: "center" });
  for (let step = 0; step < frames; step += 1) {
    await frame();
    element.scrollTop = ((element.scrollHeight - element.clientHeight) * (1 + Math.sin(step / 20))) / 2;
  }
}
