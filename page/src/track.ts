// A time series that the page collects while it is open, and its union with what the store has. Pure; times are Unix milliseconds.

/** Rows of values, in the order of time. A longer pause than `gapMs` leaves a row of nulls, so that a chart shows the gap. */
export class Track {
  readonly times: number[] = [];
  readonly values: (number | null)[][];

  constructor(private readonly width: number, private readonly gapMs: number, private readonly most = 20_000) {
    this.values = Array.from({ length: width }, () => []);
  }

  add(atMs: number, row: (number | null)[]): void {
    const last = this.times.at(-1);
    if (last !== undefined && atMs <= last) return;
    if (last !== undefined && atMs - last > this.gapMs) this.push(last + this.gapMs / 2, Array.from({ length: this.width }, () => null));
    this.push(atMs, row);
    if (this.times.length > this.most) {
      this.times.splice(0, this.most / 10);
      for (const column of this.values) column.splice(0, this.most / 10);
    }
  }

  private push(atMs: number, row: (number | null)[]): void {
    this.times.push(atMs);
    this.values.forEach((column, at) => column.push(row[at] ?? null));
  }

  clear(): void {
    this.times.length = 0;
    for (const column of this.values) column.length = 0;
  }
}

export interface Table {
  times: number[];
  values: (number | null)[][];
}

/** `older` up to the first moment of `newer`, then `newer`. What ends before `older` does is not newer, and is left out. */
export function joined(older: Table, newer: Table): Table {
  if ((newer.times.at(-1) ?? -Infinity) < (older.times.at(-1) ?? -Infinity)) return older;
  const first = newer.times[0] ?? Infinity;
  let kept = older.times.findIndex((at) => at >= first);
  if (kept < 0) kept = older.times.length;
  return {
    times: [...older.times.slice(0, kept), ...newer.times],
    values: newer.values.map((column, at) => [...(older.values[at] ?? []).slice(0, kept), ...column]),
  };
}

/** Where the values of a chart are from; `liveMs` is when the page collected some; `fixed` are the limits of a range that is not live. */
export function originText(isStored: boolean, liveMs: number[], fixed: [fromMs: number, toMs: number] | null, timeOf: (ms: number) => string): string {
  const [first] = fixed === null ? liveMs : liveMs.filter((ms) => ms >= fixed[0] && ms <= fixed[1]);
  if (isStored) return `from the daemon's store${first === undefined ? "" : ", and live"}`;
  if (first !== undefined) return `readings since ${timeOf(liveMs[0] ?? first)}, when this page was opened`;
  return fixed === null ? "no reading yet" : "no reading in this time range";
}

/** Several series with times of their own as one table: a row for each time, null where a series has no value there. */
export function aligned(series: { times: number[]; values: (number | null)[] }[]): Table {
  const times = [...new Set(series.flatMap((each) => each.times))].sort((a, b) => a - b);
  const row = new Map(times.map((at, index) => [at, index]));
  return {
    times,
    values: series.map((each) => {
      const column: (number | null)[] = Array.from({ length: times.length }, () => null);
      each.times.forEach((at, index) => { column[row.get(at) as number] = each.values[index] ?? null; });
      return column;
    }),
  };
}

/** Roll-ups with a row of null where a step is far longer than the median step: the store has no data there. */
export function withGaps(times: number[], values: (number | null)[]): { times: number[]; values: (number | null)[] } {
  const steps = times.slice(1).map((at, index) => at - (times[index] as number)).sort((a, b) => a - b);
  const longest = 3 * (steps[Math.floor(steps.length / 2)] ?? Infinity);
  const result: { times: number[]; values: (number | null)[] } = { times: [], values: [] };
  times.forEach((at, index) => {
    const before = times[index - 1];
    if (before !== undefined && at - before > longest) {
      result.times.push(before + 1);
      result.values.push(null);
    }
    result.times.push(at);
    result.values.push(values[index] ?? null);
  });
  return result;
}

/**
 * Rows on a grid that is finer than the readings: a reading holds until the next one, where that is not far longer than usual. A row
 * that a later reading does not have ends with it.
 */
export function held(rows: (number | null)[][]): (number | null)[][] {
  const steps = rows[0]?.length ?? 0;
  const read = Array.from({ length: steps }, (_, step) => step).filter((step) => rows.some((row) => (row[step] ?? null) !== null));
  const pauses = read.slice(1).map((step, at) => step - (read[at] as number)).sort((a, b) => a - b);
  const longest = 3 * (pauses[Math.floor(pauses.length / 2)] ?? 1);
  const result = rows.map((row) => [...row]);
  read.forEach((step, at) => {
    const next = read[at + 1] ?? Math.min(steps, step + longest / 3);
    if (next - step > longest) return;
    for (let filled = step + 1; filled < next; filled += 1) result.forEach((row, index) => { row[filled] = rows[index]?.[step] ?? null; });
  });
  return result;
}

/** The value that this share of the numbers does not exceed; null: there are none. */
export function quantile(sorted: number[], share: number): number | null {
  if (sorted.length === 0) return null;
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] ?? sorted[0] ?? null;
}

/** The items by key, in the order of the first of each. */
export function groupBy<T, K>(items: Iterable<T>, key: (item: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const item of items) {
    const group = groups.get(key(item));
    if (group === undefined) groups.set(key(item), [item]);
    else group.push(item);
  }
  return groups;
}
