// The past of a subject on one grid, as the daemon answers it by range and resolution.

import { fetchAged } from "./api.ts";
import { place } from "./place.ts";
import { withGaps, type Table } from "./track.ts";

type Values = (number | null)[];

export interface SeriesAnswer {
  begin_ms: number;
  step_ms: number;
  steps: number;
  quantities: Record<string, { minimum: Values; median: Values; maximum: Values }>;
}

export type Wanted = [quantity: string, part: "minimum" | "median" | "maximum", sign?: 1 | -1];

/** About one step for each two pixels of a wide chart. */
const POINTS = 600;
const REFRESH_MS = 15_000;
/** A chart may be so old. */
const SHARED_S = 5;

/**
 * The wanted columns; a quantity that is not stored is a column of nulls. A source that gives a value every few steps is no
 * gap: only steps with a value are kept, with a row of nulls where the values are far apart. Without any value the table is
 * empty.
 */
export function tableOf(answer: SeriesAnswer | null, wanted: Wanted[]): Table {
  const values = wanted.map(([quantity, part, sign = 1]): Values => {
    const column = answer?.quantities[quantity]?.[part] ?? [];
    return sign === 1 ? column : column.map((value) => (value === null ? null : -value));
  });
  if (answer === null || values.every((column) => column.length === 0)) return { times: [], values: wanted.map(() => []) };
  const steps = Array.from({ length: answer.steps }, (_, step) => step).filter((step) => values.some((column) => (column[step] ?? null) !== null));
  const rows = withGaps(steps.map((step) => answer.begin_ms + step * answer.step_ms), steps.map((step): number | null => step));
  return { times: rows.times, values: values.map((column) => rows.values.map((step) => (step === null ? null : (column[step] ?? null)))) };
}

/** The address's range as parameters of a request. A live one ends up to SHARED_S from now, so that all viewers request the same. */
export function spanQuery(extra: Record<string, string>): URLSearchParams {
  const [from, to] = place.limits(Math.ceil(Date.now() / (1_000 * SHARED_S)) * 1_000 * SHARED_S);
  return new URLSearchParams({ ...extra, since: new Date(from).toISOString(), until: new Date(to).toISOString() });
}

/** Requests something of the address's range when that or the subject changes, and from time to time. */
export class RangeRequest<T> {
  private requested = "";
  private requestedAt = -Infinity;
  private answered = "";

  constructor(private readonly path: (subject: string) => string, private readonly onAnswer: (answer: T | null) => void, private readonly everyMs = REFRESH_MS, private readonly withinMs?: number) {}

  /** Call it often; a late answer to an older request is dropped. */
  tick(subject: string | null, now: number): void {
    const request = JSON.stringify([subject, place.range]);
    if (subject === null || (request === this.requested && (document.hidden || now - this.requestedAt < this.everyMs))) return;
    Object.assign(this, { requested: request, requestedAt: now });
    void fetchAged<T>(this.path(subject), SHARED_S, this.withinMs).then(({ body: answer }) => {
      if (request !== this.requested) return;
      if (answer === null) this.requestedAt = Math.min(this.requestedAt, performance.now() - this.everyMs + REFRESH_MS); // a refusal is for now
      this.answered = request;
      this.onAnswer(answer);
    });
  }

  /** Nothing of this subject and range was answered yet. */
  get isLoading(): boolean {
    return this.requested !== this.answered;
  }
}

export const seriesPath = (subject: string, name: string): string =>
  `api/v1/series?${spanQuery({ subject, points: String(POINTS), ...(name === "" ? {} : { name }) })}`;
