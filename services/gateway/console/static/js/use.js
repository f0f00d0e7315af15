// The use of the cluster: the API keys and the batches that the viewer may see.
import { get } from "./api.js";
import { badge, byId, fillTable } from "./dom.js";
import * as format from "./format.js";

const REFRESH_MS = 5000;
const MAX_BATCHES = 20;
const BATCH_KIND = { in_progress: "info", completed: "good", failed: "bad", expired: "bad" };
const limited = (count, limit) => (limit === null ? format.number(count) : `${format.number(count)} of ${format.number(limit)}`);

const KEYS = [
  ["Name", "", (k) => k.name],
  ["Id", "", (k) => k.id],
  ["In flight", "number", (k) => limited(k.in_flight, k.concurrency)],
  ["Finished", "number narrow-hide", (k) => format.number(k.finished)],
  ["SLO attainment", "number narrow-hide", (k) => format.percent(k.slo_attainment)],
  ["Per minute at most", "number narrow-hide", (k) => format.number(k.requests_per_minute)],
  ["Priority at most", "number narrow-hide", (k) => format.number(k.max_priority)],
];
const BATCHES = [
  ["Created", "", (b) => format.moment(b.created_at)],
  ["Batch", "narrow-hide", (b) => b.id],
  ["State", "", (b) => badge(b.status.replace("_", " "), BATCH_KIND[b.status])],
  ["Lines", "number", (b) => `${format.number(b.request_counts.completed)} of ${format.number(b.request_counts.total)}`],
  ["Failed", "number narrow-hide", (b) => format.number(b.request_counts.failed)],
];

let askedMs = 0;

/** Show the keys and the newest batches, at most every REFRESH_MS. */
export async function showUse() {
  if (Date.now() < askedMs + REFRESH_MS) return;
  askedMs = Date.now();
  const [keys, batches] = await Promise.all([get("keys"), get(`v1/batches?limit=${MAX_BATCHES}`)]);
  show("keys", KEYS, keys.data);
  show("batches", BATCHES, batches.data);
}

function show(name, columns, items) {
  byId(`${name}-part`).hidden = items.length === 0;
  fillTable(byId(name), columns, items, (item) => item.id);
}
