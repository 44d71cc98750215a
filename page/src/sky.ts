// The sky above the antenna as a picture: north is up, the middle is overhead, the rim is the horizon. Pure, but for the drawing.

import { put, svg } from "./dom.ts";
import type { Satellite } from "./types.ts";

const MIDDLE = 100, HORIZON = 84, DOT = 7;

export interface SkyPoint {
  number: number;
  x: number;
  y: number;
  isHealthy: boolean;
  text: string;
}

/** Where each satellite stands whose direction is known and above the horizon. */
export function skyPoints(satellites: Satellite[]): SkyPoint[] {
  return satellites.flatMap(({ number, cn0_db_hz: cn0, healthy, azimuth_deg: azimuth, elevation_deg: elevation }) => {
    if (azimuth == null || elevation == null || elevation < 0) return [];
    const from = HORIZON * (1 - elevation / 90), angle = (azimuth * Math.PI) / 180;
    const health = healthy === null ? "health not provided" : healthy ? "healthy" : "unhealthy";
    const level = cn0 === null ? "C/N0 not provided" : `${cn0} dB-Hz`;
    return [{ number, x: MIDDLE + from * Math.sin(angle), y: MIDDLE - from * Math.cos(angle), isHealthy: healthy === true, text: `satellite ${number}: azimuth ${azimuth}°, elevation ${elevation}°, ${level}, ${health}` }];
  });
}

/** A healthy satellite is a filled circle, any other one an empty one. */
export function drawSky(picture: SVGSVGElement, satellites: Satellite[]): void {
  const points = skyPoints(satellites);
  picture.toggleAttribute("hidden", points.length === 0);
  const drawn = JSON.stringify(points);
  if (picture.dataset.drawn === drawn) return;
  picture.dataset.drawn = drawn;
  picture.setAttribute("aria-label", `sky plot: ${points.length} satellites with a known direction, ${points.filter(({ isHealthy }) => isHealthy).length} of them healthy`);
  const names: [string, number, number][] = [["N", MIDDLE, 11], ["E", 193, MIDDLE + 4], ["S", MIDDLE, 197], ["W", 7, MIDDLE + 4]];
  picture.replaceChildren(
    ...[0, 30, 60].map((elevation) => svg("circle", { class: "ring", cx: MIDDLE, cy: MIDDLE, r: HORIZON * (1 - elevation / 90) })),
    ...names.map(([name, x, y]) => svg("text", { class: "name", x, y }, name)),
    ...points.flatMap(({ number, x, y, isHealthy, text }) => {
      const dot = svg("circle", { class: isHealthy ? "healthy" : "unhealthy", cx: x, cy: y, r: DOT });
      const title = svg("title");
      put(title, text);
      dot.append(title);
      return [dot, svg("text", { class: isHealthy ? "inside" : "outside", x, y: y + 3 }, String(number))];
    }),
  );
}
