// Writes texts and table rows into the page: always as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function put(element, text, className) {
  if (element.textContent !== text) element.textContent = text;
  if (className !== undefined && element.className !== className) element.className = className;
}

/** A row is [key, cell, ...]; a cell is a text or {text, className, bar, href, chain}. A key keeps its row element, so that a reader's selection stays. */
export function fillTable(body, rows) {
  const existing = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const children = rows.map(([key, ...cells]) => {
    const row = existing.get(key) ?? document.createElement("tr");
    row.dataset.key = key;
    while (row.cells.length < cells.length) row.insertCell();
    cells.forEach((cell, index) => fillCell(row.cells[index], typeof cell === "string" ? { text: cell } : cell));
    return row;
  });
  putChildren(body, children);
}

/** Replaces children only where they differ, so that the selection and the cursor stay. */
export function putChildren(parent, children) {
  if (children.length !== parent.children.length || children.some((child, index) => parent.children[index] !== child)) parent.replaceChildren(...children);
}

function fillCell(cell, { text, className = "", bar, href, chain = [] }) {
  if (chain.length > 0) return fillChain(cell, text, chain);
  if (href !== undefined) return fillLink(cell, text, href);
  if (bar === undefined) return put(cell, text, className);
  if (!cell.firstChild) cell.append(document.createElement("span"), document.createElement("b"));
  cell.className = "bar";
  cell.firstChild.style.width = `${Math.max(0, Math.min(1, bar)) * 65}%`;
  put(cell.lastChild, text);
}

function fillLink(cell, text, href) {
  if (!cell.firstElementChild) cell.replaceChildren(document.createElement("a"));
  const link = cell.firstElementChild;
  if (link.getAttribute("href") !== href) link.href = href;
  put(link, text);
}

/** The causal chain, from the root cause to the affected jobs, above the text. */
function fillChain(cell, text, chain) {
  if (cell.querySelector("ol")) cell.firstChild.replaceChildren();
  else cell.replaceChildren(document.createElement("ol"), document.createElement("p"));
  cell.firstChild.className = "chain";
  for (const link of chain) cell.firstChild.append(Object.assign(document.createElement("li"), { textContent: link }));
  put(cell.lastChild, text);
}

export const number = (text) => ({ text, className: "number" });
