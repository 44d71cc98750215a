// How large a chart and its letters are: a phone's fill its screen, and a wall's are read from afar.

/** The width of a window, and from it on the factors of a chart's height and of its letters. */
const STEPS: [fromPx: number, height: number, letters: number][] = [[3000, 1.7, 1.45], [2200, 1.35, 1.2], [600, 1, 1], [0, 1.5, 1]];

const step = (): [number, number, number] => STEPS.find(([from]) => innerWidth >= from) ?? [0, 1, 1];

/** On a phone a card is about as high as the screen. */
export const scaledHeight = (height: number): number => Math.round(Math.max(height, Math.min(height * step()[1], isPhone() ? innerHeight - 300 : Infinity)));
export const isPhone = (): boolean => innerWidth < 600;
export const letters = (px: number): number => Math.round(px * step()[2]);
export const chartFont = (ratio = 1): string => `${letters(11) * ratio}px Inter, system-ui, sans-serif`;
