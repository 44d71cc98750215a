// The theme's colours, for what is drawn on a canvas.

const cache = new Map<string, string>();

/** A custom property of the style sheet, as the present theme has it. */
export function colour(name: string): string {
  let value = cache.get(name);
  if (value === undefined) {
    const { theme } = document.documentElement.dataset;
    value = themed(getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(), theme === undefined ? systemDark().matches : theme === "dark");
    cache.set(name, value);
  }
  return value;
}

/** Of "light-dark(#fff, #000)" the colour of this theme; of anything else itself. */
export function themed(value: string, isDark: boolean): string {
  const [, light, dark] = /^light-dark\(\s*([^,]+),\s*([^)]+)\)$/.exec(value) ?? [];
  return (isDark ? dark : light)?.trim() ?? value;
}

const systemDark = (): MediaQueryList => matchMedia("(prefers-color-scheme: dark)");

export type Theme = "system" | "light" | "dark";
export const THEMES: Theme[] = ["system", "light", "dark"];
const listeners: (() => void)[] = [];

export const onTheme = (listener: () => void): number => listeners.push(listener);

export function setTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  changedTheme();
}

function changedTheme(): void {
  cache.clear();
  for (const listener of listeners) listener();
}

export function followSystem(): void {
  systemDark().addEventListener("change", changedTheme);
}

type Rgb = [number, number, number];

export function rgb(hex: string): Rgb {
  const digits = hex.length === 4 ? [...hex.slice(1)].map((digit) => digit + digit).join("") : hex.slice(1, 7);
  return [0, 2, 4].map((from) => parseInt(digits.slice(from, from + 2), 16)) as Rgb;
}

/** A colour scale of 256 steps as canvas pixels (0xAABBGGRR) between stops. */
export function scale(stops: string[]): Uint32Array {
  const colours = stops.map(rgb);
  return Uint32Array.from({ length: 256 }, (_, step) => {
    const position = (step / 255) * (colours.length - 1);
    const [low, high] = [colours[Math.floor(position)] as Rgb, colours[Math.ceil(position)] as Rgb];
    const share = position % 1;
    const mixed = low.map((part, at) => Math.round(part + ((high[at] as number) - part) * share)) as Rgb;
    return pixel(mixed);
  });
}

export const pixel = ([red, green, blue]: Rgb): number => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
