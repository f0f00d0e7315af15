// The table of recently finished requests.
import { get } from "./api.js";
import { byId, empty, h, keyed } from "./dom.js";
import * as format from "./format.js";
import { verdict } from "./request.js";

const ROWS = 100;
const COLUMNS = [
  ["Arrived", ""],
  ["Request", ""],
  ["Outcome", ""],
  ["Latency", "number"],
  ["SLO", "number narrow-hide"],
  ["Steps", "number narrow-hide"],
  ["Threshold", "number narrow-hide"],
  ["Reply", "narrow-hide"],
];

export async function showRequests() {
  const requests = (await get(`v1/requests?limit=${ROWS}`)).data;
  const place = byId("requests");
  if (requests.length === 0) {
    place.replaceChildren(empty("No request yet", "Send a prompt in the playground or through the API."));
    return;
  }
  const body = place.querySelector("tbody") ?? makeTable(place);
  keyed(body, requests, (request) => request.id, row, () => {});
}

function makeTable(place) {
  const body = h("tbody");
  const head = h("tr", {}, ...COLUMNS.map(([name, kind]) => h("th", { className: kind, scope: "col" }, name)));
  place.replaceChildren(h("div", { className: "table-wrap" }, h("table", {}, h("thead", {}, head), body)));
  return body;
}

function row(request) {
  const serving = request.dilaserve;
  const open = () => (location.hash = `#requests/${request.id}`);
  const cells = [
    format.clock(request.arrival_s),
    h("button", { className: "link", type: "button", "aria-label": `Open request ${request.id.slice(0, 8)}` }, request.id.slice(0, 8)),
    verdict(request),
    format.duration(serving.latency_ms),
    format.duration(serving.slo_ms),
    format.number(serving.steps),
    format.threshold(serving.mean_threshold),
    request.text || request.error?.message || "",
  ];
  const columns = cells.map((cell, i) => h("td", { className: `${COLUMNS[i][1]}${i === cells.length - 1 ? " text" : ""}` }, cell));
  return h("tr", { className: "opens", onclick: open }, ...columns);
}
