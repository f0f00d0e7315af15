// The requests in progress and the finished ones, selected by outcome, key, instance and id.
import { badge, byId, empty, h } from "./dom.js";
import * as format from "./format.js";
import { Listing } from "./listing.js";
import { verdict } from "./request.js";

const IN_PROGRESS = "status=in_progress";
const OUTCOMES = [
  ["", "Any"],
  [IN_PROGRESS, "In progress"],
  ["status=completed&slo_met=true", "SLO met"],
  ["status=completed&slo_met=false", "SLO missed"],
  ["status=failed", "Failed"],
  ["status=rejected", "Rejected"],
  ["status=refused", "Refused"],
  ["status=cancelled", "Cancelled"],
];
const key = (request) => request.key || "–";

const UNFINISHED = [
  ["Arrived", "", (r) => format.arrival(r.arrival_s)],
  ["State", "", (r) => (r.instance === null ? badge("waiting", "warn") : badge("running", "info"))],
  ["Age", "number", (r) => format.duration(Math.max(0, Date.now() - r.arrival_s * 1000))],
  ["SLO", "number narrow-hide", (r) => format.duration(r.slo_ms)],
  ["Tokens", "number narrow-hide", (r) => `${format.number(r.unmasked_tokens)} of ${format.number(r.output_tokens)}`],
  ["Steps", "number narrow-hide", (r) => format.number(r.steps)],
  ["Threshold", "number narrow-hide", (r) => format.threshold(r.mean_threshold)],
  ["Key", "narrow-hide", key],
  ["Instance", "narrow-hide", (r) => r.instance ?? "–"],
];

const FINISHED = [
  ["Arrived", "", (r) => format.arrival(r.arrival_s)],
  ["Outcome", "", verdict],
  ["Latency", "number", (r) => format.duration(r.dilaserve.latency_ms)],
  ["SLO", "number narrow-hide", (r) => format.duration(r.dilaserve.slo_ms)],
  ["Steps", "number narrow-hide", (r) => format.number(r.dilaserve.steps)],
  ["Threshold", "number narrow-hide", (r) => format.threshold(r.dilaserve.mean_threshold)],
  ["Key", "narrow-hide", key],
  ["Reply", "text narrow-hide", (r) => r.text || r.error?.message || ""],
];

let lists = null;

/** Make the form and the two tables; `onChange` is called when the form changes. */
export function setUpRequests(onChange) {
  const form = byId("filter");
  byId("filter-outcome").append(...OUTCOMES.map(([value, name]) => h("option", { value }, name)));
  form.addEventListener("input", onChange);
  form.addEventListener("reset", () => setTimeout(onChange)); // after the fields are empty
  form.addEventListener("submit", (event) => event.preventDefault());
  const nothing = () => empty("No request in progress", "Requests appear here from their arrival to their outcome.");
  lists = {
    unfinished: new Listing(byId("unfinished"), "requests in progress", UNFINISHED, nothing),
    finished: new Listing(byId("finished"), "finished requests", FINISHED, noneFinished),
  };
}

function noneFinished() {
  if (byId("filter").querySelector("input:not(:placeholder-shown)") || byId("filter-outcome").value) {
    return empty("No request found", "The gateway lists the last 2,000; a whole id also finds an older one, for a day.");
  }
  return empty("No request yet", "Send a prompt in the playground or through the API.");
}

/** Show the requests that the form selects. `finished` is false if no request has ended since the last call. */
export async function showRequests(finished) {
  const outcome = byId("filter-outcome").value;
  const fields = ["key", "instance", "id"].map((name) => [name, byId(`filter-${name}`).value.trim()]);
  const query = new URLSearchParams(fields.filter(([, value]) => value)).toString();
  const [runs, ended] = [outcome === "" || outcome === IN_PROGRESS, outcome !== IN_PROGRESS];
  byId("unfinished-part").hidden = !runs;
  byId("finished-part").hidden = !ended;
  await Promise.all([
    runs && lists.unfinished.show(`${IN_PROGRESS}&${query}`),
    ended && finished && lists.finished.show(`${outcome}&${query}`),
  ]);
}
