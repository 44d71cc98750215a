import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { rgb, themed } from "../src/colours.ts";
import { NO_CLOCK, STATUSES, STATUS_CLASSES, STATUS_SIGNS } from "../src/model.ts";

declare const SOURCES: string;
const STYLE = readFileSync(`${SOURCES}/style.css`, "utf8");

/** The colours of one theme, as the style sheet names both of each: light, then dark. */
function theme(isDark: boolean): Map<string, string> {
  return new Map([...STYLE.matchAll(/--([a-z0-9-]+): (light-dark\([^)]*\));/g)].map(([, name, value]): [string, string] => [name ?? "", themed(value ?? "", isDark)]));
}

const LIGHT = theme(false);
const DARK = theme(true);
const THEMES: [string, Map<string, string>][] = [["light", LIGHT], ["dark", DARK]];

type Triple = [number, number, number];

const linear = (part: number): number => (part <= 10.3 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);

/** Machado, Oliveira and Fernandes 2009, deuteranopia, on linear RGB. */
const DEUTERANOPIA: Triple[] = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]];
const times = (row: Triple, [r, g, b]: Triple): number => row[0] * r + row[1] * g + row[2] * b;
const seen = (colour: string): Triple => DEUTERANOPIA.map((row) => Math.min(1, Math.max(0, times(row, rgb(colour).map(linear) as Triple)))) as Triple;

/** CIE 1976 L*a*b*, D65. */
function lab(colour: Triple): Triple {
  const part = (row: Triple, white: number): number => {
    const share = times(row, colour) / white;
    return share > 0.008856 ? Math.cbrt(share) : 7.787 * share + 16 / 116;
  };
  const [x, y, z] = [part([0.4124564, 0.3575761, 0.1804375], 0.95047), part([0.2126729, 0.7151522, 0.072175], 1), part([0.0193339, 0.119192, 0.9503041], 1.08883)];
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

const distance = (one: string, other: string): number => {
  const [a, b] = [lab(seen(one)), lab(seen(other))];
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
};

const luminance = (colour: string): number => times([0.2126, 0.7152, 0.0722], rgb(colour).map(linear) as Triple);
const contrast = (one: string, other: string): number => {
  const [low = 0, high = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};

/** Ten is seen at a glance; less than twenty is too near for a wall. */
const APART = 20;

function areApart(names: string[], colours: Map<string, string>, label: string): void {
  for (const [index, one] of names.entries()) for (const other of names.slice(index + 1)) {
    const far = distance(colours.get(one) ?? "", colours.get(other) ?? "");
    assert.ok(far >= APART, `${label}: ${one} and ${other} are ${far.toFixed(1)} apart`);
  }
}

test("a reader with deuteranopia tells the statuses apart by colour, in both themes", () => {
  for (const [label, colours] of THEMES) {
    areApart(["good", "warn", "bad", "unknown"], colours, label);
    areApart(["flow-good", "flow-some", "flow-wide", "flow-fine", "no-bound"], colours, label);
    areApart(["fine-1", "warn", "bad", "no-bound"], colours, label);
  }
});

test("no bound has a colour that no bound of a heat map has", () => {
  for (const [label, colours] of THEMES) for (const stop of ["heat-1", "heat-2", "heat-3", "heat-4", "heat-5", "cell-nothing"]) areApart(["no-bound", stop], colours, label);
});

test("an early rank has a colour that no late one has, nor one within the clocks' error", () => {
  for (const [label, colours] of THEMES) for (const other of ["late-1", "late-2", "late-3", "late-4", "cell-within", "cell-nothing"]) areApart(["cell-early", other], colours, label);
});

test("colour decides nothing alone: every status has a sign of its own and a word", () => {
  const signs = [...STATUSES, NO_CLOCK].map((status) => STATUS_SIGNS[status as keyof typeof STATUS_SIGNS]);
  assert.equal(new Set(signs).size, signs.length);
  assert.equal(new Set(Object.values(STATUS_CLASSES)).size, signs.length);
});

test("text has a contrast of 4.5 on every ground, and a shape one of 3 on a card", () => {
  for (const [label, colours] of THEMES) {
    for (const ground of ["ground", "card", "raised"]) for (const name of ["ink", "quiet", "good", "warn", "bad", "unknown", "accent"]) {
      const ratio = contrast(colours.get(name) ?? "", colours.get(ground) ?? "");
      assert.ok(ratio >= 4.5, `${label}: ${name} on ${ground} has ${ratio.toFixed(2)}`);
    }
    for (const name of ["flow-good", "flow-some", "flow-wide", "no-bound", "series-1", "series-2", "series-3", "series-7"]) {
      const ratio = contrast(colours.get(name) ?? "", colours.get("card") ?? "");
      assert.ok(ratio >= 3, `${label}: ${name} on a card has ${ratio.toFixed(2)}`);
    }
  }
});

test("each colour is in the style sheet once, with a value for each theme", () => {
  const names = [...STYLE.matchAll(/--([a-z0-9-]+): /g)].map(([, name]) => name);
  assert.deepEqual(names, [...LIGHT.keys()]);
  for (const [label, colours] of THEMES) for (const [name, value] of colours) assert.match(value, /^#[0-9a-f]{6}([0-9a-f]{2})?$/, `${label}: ${name}`);
});

test("a colour is that of the theme, also as a bundler writes it", () => {
  assert.deepEqual([themed("light-dark(#fff,#0b0f13)", false), themed("light-dark(#ffffff, #0b0f13)", true), themed("#123456", true)], ["#fff", "#0b0f13", "#123456"]);
});
