// The reconfigurator's decisions, newest first.
import { get } from "./api.js";
import { badge, byId, empty, facts, h } from "./dom.js";
import * as format from "./format.js";
import { traceLink } from "./trace.js";

const KINDS = { stayed: "", running: "info", done: "good", replaced: "", failed: "bad" };
const TITLES = { stayed: "No change", running: "Changing", done: "Changed", replaced: "Changed in part", failed: "Change failed" };

export async function showPlans() {
  const { data: plans, reconfigurator } = await get("plans");
  byId("plans-state").textContent = stateOf(reconfigurator);
  const none = empty("No decision yet", "Decisions appear here, including “no change”.");
  byId("plans").replaceChildren(...(plans.length ? plans.map(planCard) : [h("div", { className: "card" }, none)]));
}

function stateOf(reconfigurator) {
  if (!reconfigurator) return "No reconfigurator runs: the instances stay as they are, and no workload is recorded.";
  if (!reconfigurator.changes_instances) {
    return "Reconfiguration is off: the workload is recorded, and the instances stay as they are. dilaserve up --reconfigure turns it on.";
  }
  const interval = format.duration(reconfigurator.interval_s * 1000);
  return `Reconfiguration is on: a decision every ${interval}, and earlier if the load outgrows the plan.`;
}

function planCard(plan) {
  const proposed = plan.state === "stayed" ? "Proposed" : "Instances";
  const rows = [[proposed, change(plan)]];
  if (plan.mean_threshold !== null) rows.push(["Planned threshold", format.threshold(plan.mean_threshold)]);
  if (plan.slack_s !== null) rows.push(["Planned slack", `${format.number(plan.slack_s, 2)} s`]);
  if (plan.solve_s !== null) rows.push(["Solved in", `${format.duration(plan.solve_s * 1000)}${plan.status ? `, ${plan.status}` : ""}`]);
  if (plan.traceparent) rows.push(["Trace", traceLink(plan.traceparent.split("-")[1])]);
  if (plan.classes.length) rows.push(["Workload", workload(plan.classes)]);
  return h(
    "article",
    { className: "card plan" },
    h("time", { className: "plan-when" }, format.moment(plan.decided_s)),
    h(
      "div",
      {},
      h("div", { className: "plan-head" }, h("h2", {}, TITLES[plan.state]), badge(plan.state, KINDS[plan.state])),
      h("p", {}, plan.reason),
      facts(rows),
      plan.events.length ? steps(plan.events) : null,
    ),
  );
}

/** `2 × TP 1`, sorted by TP degree. */
function instances(places) {
  const counts = new Map();
  for (const { gpus } of places) counts.set(gpus.length, (counts.get(gpus.length) ?? 0) + 1);
  return [...counts].sort(([a], [b]) => a - b).map(([tp, count]) => `${count} × TP ${tp}`).join(", ") || "none";
}

function change({ before, target }) {
  const [from, to] = [instances(before), instances(target)];
  return from === to || !target.length ? from : `${from} → ${to}`;
}

function workload(classes) {
  const rps = classes.reduce((sum, item) => sum + item.rps, 0);
  return `${format.number(rps, 1)} requests/s in ${classes.length === 1 ? "1 class" : `${classes.length} classes`}`;
}

function steps(events) {
  return h(
    "details",
    {},
    h("summary", {}, format.plural(events.length, "step")),
    h("ol", { className: "plan-steps" }, ...events.map((event) => h("li", {}, `${format.clock(event.at_s)} ${event.text}`))),
  );
}
