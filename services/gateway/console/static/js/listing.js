// A table of requests, one page at a time; a row opens its request.
import { get } from "./api.js";
import { empty, h, keyed } from "./dom.js";
import * as format from "./format.js";

const ROWS = 25;

export class Listing {
  /** `columns` are [heading, classes, content of a request]; `none()` is shown without a request. */
  constructor(place, name, columns, none) {
    this.place = place;
    this.columns = [["Request", "", null], ...columns];
    this.none = none;
    this.query = null;
    this.starts = [null]; // the id before each page so far, the shown one last
    this.body = h("tbody");
    const head = this.columns.map(([name, kind]) => h("th", { className: kind, scope: "col" }, name));
    this.table = h("div", { className: "table-wrap" }, h("table", {}, h("thead", {}, h("tr", {}, ...head)), this.body));
    this.newer = h("button", { type: "button", onclick: () => this.turn(null) }, "Previous");
    this.older = h("button", { type: "button", onclick: () => this.turn(this.body.lastChild.dataset.key) }, "Next");
    this.page = h("span", { role: "status" });
    this.pages = h("div", { className: "pages", role: "group", "aria-label": `Pages of ${name}` }, this.newer, this.page, this.older);
    this.notice = h("div", {});
    place.replaceChildren(this.table, this.notice, this.pages);
  }

  /** Show the requests that the parameters `query` select; the first page of them if they have changed. */
  async show(query) {
    if (query !== this.query) this.starts = [null];
    this.query = query;
    const start = this.starts.at(-1);
    const after = start === null ? "" : `&after=${encodeURIComponent(start)}`;
    try {
      const { data, has_more: hasMore, total } = await get(`v1/requests?limit=${ROWS}&${query}${after}`);
      if (query === this.query && start === this.starts.at(-1)) this.fill(data, hasMore, total);
    } catch (error) {
      if (error.status === undefined) throw error;
      if (error.status !== 404) return this.message(empty("No list", error.message));
      this.starts = [null]; // the gateway no longer keeps the request before the page
      return this.show(query);
    }
  }

  /** Go to the page after the request `start`; null: back. */
  turn(start) {
    if (start === null) this.starts.pop();
    else this.starts.push(start);
    this.show(this.query).catch((error) => console.debug(error)); // the next update repeats it
  }

  fill(requests, hasMore, total) {
    const page = this.starts.length;
    if (requests.length === 0 && page === 1) {
      this.message(this.none());
      return;
    }
    this.notice.replaceChildren();
    this.table.hidden = false;
    keyed(this.body, requests, (request) => request.id, (request) => this.row(request), (row, request) => this.update(row, request));
    this.pages.hidden = page === 1 && !hasMore;
    this.newer.disabled = page === 1;
    this.older.disabled = !hasMore;
    const text = `Page ${format.number(page)}${total ? ` of ${format.number(Math.ceil(total / ROWS))}` : ""}`;
    if (this.page.textContent !== text) this.page.textContent = text;
  }

  message(element) {
    this.table.hidden = this.pages.hidden = true;
    this.body.replaceChildren();
    this.notice.replaceChildren(element);
  }

  row(request) {
    const short = request.id.slice(0, 8);
    const button = h("button", { className: "link", type: "button", "aria-label": `Open request ${short}` }, short);
    const cells = this.columns.map(([, kind], i) => h("td", { className: kind }, i === 0 ? button : null));
    return h("tr", { className: "opens", onclick: () => (location.hash = `#requests/${request.id}`) }, ...cells);
  }

  /** The button stays, as it may have the focus. */
  update(row, request) {
    this.columns.forEach(([, , content], i) => content && row.children[i].replaceChildren(content(request)));
  }
}
