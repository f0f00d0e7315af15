// The reconfigurator's decisions, the latest first.
import { get } from "./api.js";
import { badge, byId, empty, facts, h } from "./dom.js";
import * as format from "./format.js";

export async function showPlans() {
  const plans = (await get("plans")).data;
  byId("plans").replaceChildren(
    ...(plans.length
      ? plans.map(plan)
      : [h("div", { className: "card" }, empty("No decision yet", "The reconfigurator weighs the workload from time to time; what it decides is told here, also when it decides to change nothing."))]),
  );
}

const instances = (perTp) =>
  Object.entries(perTp ?? {})
    .map(([tp, count]) => `${count} × TP ${tp}`)
    .join(", ") || "none";

function plan(item) {
  return h(
    "article",
    { className: "card plan" },
    h("time", { className: "plan-when" }, format.moment(item.at_s)),
    h(
      "div",
      {},
      h("div", { className: "plan-head" }, badge(item.decision, item.applied ? "info" : ""), h("h3", {}, item.title)),
      h("p", {}, item.reason),
      facts([
        ["Instances", instances(item.instances_per_tp)],
        ["Mean threshold", format.threshold(item.mean_threshold)],
      ]),
    ),
  );
}
