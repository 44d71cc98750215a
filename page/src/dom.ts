// Writes texts, elements and table rows into the page: always as text, never as markup.

export const byId = <T extends HTMLElement = HTMLElement>(id: string): T => {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element ${id}`);
  return found as T;
};

export function put(element: Element, text: string, className?: string): void {
  if (element.textContent !== text) element.textContent = text;
  if (className !== undefined && element.getAttribute("class") !== className) element.setAttribute("class", className);
}

export interface Cell {
  text: string;
  className?: string;
  bar?: number;
  href?: string;
  chain?: string[];
}
export type Cells = (string | Cell)[];
/** A row's key, then its cells. */
export type Row = [key: string, ...cells: Cells];

/** Fills a table's body. A key keeps its row element, so that a reader's selection stays. */
export function fillTable(body: HTMLElement, rows: Row[]): void {
  const existing = new Map([...body.children].map((row) => [(row as HTMLElement).dataset.key, row as HTMLTableRowElement]));
  const children = rows.map(([key, ...cells]) => {
    const row = existing.get(key) ?? document.createElement("tr");
    row.dataset.key = key;
    while (row.cells.length < cells.length) row.insertCell();
    cells.forEach((cell, index) => fillCell(row.cells[index] as HTMLTableCellElement, typeof cell === "string" ? { text: cell } : cell));
    return row;
  });
  putChildren(body, children);
}

/** Replaces children only where they differ, so that the selection and the cursor stay. */
export function putChildren(parent: Element, children: Element[]): void {
  if (children.length !== parent.children.length || children.some((child, index) => parent.children[index] !== child)) parent.replaceChildren(...children);
}

function fillCell(cell: HTMLTableCellElement, { text, className = "", bar, href, chain = [] }: Cell): void {
  if (chain.length > 0) return fillChain(cell, text, chain);
  if (href !== undefined) return fillLink(cell, text, href);
  if (bar === undefined) return put(cell, text, className);
  if (!cell.firstElementChild) cell.append(document.createElement("span"), document.createElement("b"));
  cell.className = "bar";
  (cell.firstElementChild as HTMLElement).style.width = `${Math.max(0, Math.min(1, bar)) * 65}%`;
  put(cell.lastElementChild as Element, text);
}

function fillLink(cell: HTMLTableCellElement, text: string, href: string): void {
  if (!(cell.firstElementChild instanceof HTMLAnchorElement)) cell.replaceChildren(document.createElement("a"));
  const link = cell.firstElementChild as HTMLAnchorElement;
  if (link.getAttribute("href") !== href) link.href = href;
  put(link, text);
}

/** The causal chain, from the root cause to the affected jobs, above the text. */
function fillChain(cell: HTMLTableCellElement, text: string, chain: string[]): void {
  const drawn = JSON.stringify(chain);
  if (cell.dataset.chain !== drawn) {
    cell.dataset.chain = drawn;
    cell.replaceChildren(h("ol", { class: "chain" }, ...chain.map((link) => h("li", {}, link))), document.createElement("p"));
  }
  put(cell.lastElementChild as Element, text);
}

export const number = (text: string): Cell => ({ text, className: "number" });

/** An element with attributes and children; a text child stays text. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Record<string, string> = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const COPIED_MS = 1_500;

/**
 * Copies a text, and says so on the button for a moment. A page of plain HTTP has no clipboard of its own unless it is on this
 * machine; there a selection is copied.
 */
export async function copyText(button: HTMLElement, text: string): Promise<void> {
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false) ?? copiedSelection(text);
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  put(button, isCopied ? "copied" : "the browser refused to copy");
  setTimeout(() => put(button, label), COPIED_MS);
}

function copiedSelection(text: string): boolean {
  const area = h("textarea", { readonly: "", class: "off-screen" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}

/** An SVG element, as `h` makes one of HTML. */
export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Record<string, string | number> = {}, text = ""): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== "") element.textContent = text;
  return element;
}
