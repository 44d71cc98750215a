// The five views and their addresses. Pure.

export const VIEWS = ["fleet", "node", "grandmaster", "job", "timeline"] as const;
export type ViewName = (typeof VIEWS)[number];

export interface Route {
  view: ViewName | null;
  name: string | null;
}

/** The view of a path below the page's root; view null: the root itself, which shows the fleet or the only node. */
export function routeOf(path: string): Route {
  const [first = "", second = ""] = path.replace(/^\/+|\/+$/g, "").split("/");
  const view = VIEWS.find((each) => each === first) ?? null;
  return { view, name: view === null || second === "" ? null : decoded(second) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const pathOf = (view: ViewName, name: string | null = null): string => (name === null ? view : `${view}/${encodeURIComponent(name)}`);

/** The query with these changes; null or "" removes a parameter. */
export function changed(query: URLSearchParams, changes: Record<string, string | null>): URLSearchParams {
  const result = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") result.delete(name);
    else result.set(name, value);
  }
  return result;
}
