// Elements without a framework.

/** An element with properties (`data-`, `aria-` and `style` entries too), listeners (`onclick`) and children. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") for (const [key, css] of Object.entries(value)) element.style.setProperty(key, css);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A list of pairs of a name and a text or element. */
export function facts(pairs) {
  return h("dl", { className: "facts" }, ...pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A placeholder for an empty view. */
export function empty(title, text) {
  return h("div", { className: "empty" }, h("strong", {}, title), text);
}

export const badge = (text, kind = "") => h("span", { className: `badge ${kind}` }, text);

/** Make the children of `parent` match `items` in order: update the element of a known key, make that of a new one. */
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const elements = items.map((item) => {
    const element = old.get(key(item)) ?? make(item);
    element.dataset.key = key(item);
    update(element, item);
    return element;
  });
  const kept = new Set(elements);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  elements.forEach((element, i) => parent.children[i] !== element && parent.insertBefore(element, parent.children[i] ?? null));
}

/** Show the items in a table; `columns` are [heading, classes, content of an item]. */
export function fillTable(place, columns, items, key) {
  let body = place.querySelector("tbody");
  if (body === null) {
    const head = columns.map(([name, kind]) => h("th", { className: kind, scope: "col" }, name));
    body = h("tbody");
    place.replaceChildren(h("div", { className: "table-wrap" }, h("table", {}, h("caption", {}), h("thead", {}, h("tr", {}, ...head)), body)));
  }
  const cells = (item) => columns.map(([, kind, content]) => h("td", { className: kind }, content(item)));
  keyed(body, items, key, () => h("tr", {}), (row, item) => row.replaceChildren(...cells(item)));
}
