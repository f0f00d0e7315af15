// One request in a drawer: its serving statistics, and each step's threshold, instance and time to the deadline.
import { get } from "./api.js";
import { Chart, axis, css } from "./chart.js";
import { badge, byId, empty, facts, h } from "./dom.js";
import * as format from "./format.js";
import { traceLink } from "./trace.js";

const REFRESH_MS = 1000; // between two looks at a request that runs

/** The badge of a request's outcome. */
export function verdict(request) {
  if (request.status !== "completed") return badge(request.status, request.status === "cancelled" ? "" : "bad");
  if (request.dilaserve.unverified) return badge("unverified", "bad");
  return request.dilaserve.slo_met ? badge("SLO met", "good") : badge("SLO missed", "warn");
}

let stepsChart = null;

/** Show one request in the drawer. */
export async function openRequest(id) {
  const drawer = byId("detail");
  const close = h("button", { type: "button", onclick: () => drawer.close() }, "Close");
  const head = h("div", { className: "drawer-head" }, h("h2", { id: "detail-title", className: "mono" }, id), close);
  drawer.replaceChildren(head);
  drawer.onclose = () => {
    stepsChart?.remove();
    stepsChart = null;
    if (location.hash.startsWith("#requests/")) history.replaceState(null, "", "#requests");
  };
  drawer.onclick = (event) => event.target === drawer && event.offsetX < 0 && drawer.close();
  if (!drawer.open) drawer.showModal();
  try {
    for (;;) {
      const request = await get(`v1/requests/${encodeURIComponent(id)}`);
      if (!head.isConnected) return; // another request was opened
      drawer.replaceChildren(head, ...(request.dilaserve ? finished(request) : unfinished(request)));
      if (request.dilaserve) return;
      await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
      if (!drawer.open || !head.isConnected) return;
    }
  } catch (error) {
    if (head.isConnected) drawer.append(empty("Not found", error.message));
  }
}

/** The facts that a request has from its arrival on. */
function received(request) {
  return [
    ["Arrived", format.moment(request.arrival_s)],
    ["Key", request.key || "–"],
    ["Priority", format.number(request.priority)],
    ["Trace", traceLink(request.trace_id)],
  ];
}

function unfinished(request) {
  const state = request.instance === null ? badge("waiting", "warn") : badge("running", "info");
  const rows = [
    ["Age", format.duration(Math.max(0, Date.now() - request.arrival_s * 1000))],
    ["SLO", format.duration(request.slo_ms)],
    ["Tokens", `${format.number(request.unmasked_tokens)} of ${format.number(request.output_tokens)}`],
    ["Steps", format.number(request.steps)],
    ["Mean threshold", format.threshold(request.mean_threshold)],
    ["Migrations", format.number(request.migrations)],
    ["Instance", request.instance ?? "–"],
  ];
  return [h("div", { role: "status" }, state), facts([...received(request), ...rows])];
}

function finished(request) {
  const serving = request.dilaserve;
  const rows = [
    ["Latency", format.duration(serving.latency_ms)],
    ["Computing", format.duration(serving.step_ms)],
    ["SLO", format.duration(serving.slo_ms)],
    ["Steps", serving.steps === undefined ? "–" : `${serving.steps} (${serving.recompute_steps} recompute)`],
    ["Mean threshold", format.threshold(serving.mean_threshold)],
    ["Lowest threshold", format.threshold(serving.min_threshold)],
    ["Tokens", `${format.number(request.usage.prompt_tokens)} in, ${format.number(request.usage.completion_tokens)} out`],
    ["Migrations", format.number(serving.migrations)],
    ["Instances", (serving.instances ?? []).join(", ") || "–"],
  ];
  const reply = h("div", { className: `reply${request.error ? " wrong" : ""}` }, request.error?.message ?? request.text);
  const parts = [h("div", {}, verdict(request)), facts([...received(request), ...rows]), reply];
  return request.steps?.length ? [...parts, ...migrations(request.steps), ...steps(request), stepTable(request.steps)] : parts;
}

/** The steps before which the request moved to another instance; the instances run them one after the other. */
function migrations(steps) {
  const moves = steps.filter((step, i) => i > 0 && step.instance !== steps[i - 1].instance);
  if (moves.length === 0) return [];
  const from = (step) => steps[steps.indexOf(step) - 1].instance;
  const texts = moves.map((step) => `Step ${step.step}, at ${format.duration(step.t_ms)}: ${from(step)} → ${step.instance}`);
  return [h("div", {}, h("h3", {}, "Migrations"), h("ol", { className: "moves" }, ...texts.map((text) => h("li", {}, text))))];
}

const INSTANCE_COLOURS = ["--series-1", "--series-2", "--good", "--bad"];

/** The chart of thresholds over time: a dot per step in its instance's colour, the deadline as a line. */
function steps(request) {
  const { slo_ms: sloMs, latency_ms: latencyMs } = request.dilaserve;
  const instances = [...new Set(request.steps.map((step) => step.instance))];
  const colours = instances.map((_, i) => INSTANCE_COLOURS[i % INSTANCE_COLOURS.length]);
  const place = h("div", { className: "plot" });
  const legend = h(
    "div",
    { className: "steps-chart-legend" },
    ...instances.map((name, i) => h("span", {}, h("i", { style: { background: `var(${colours[i]})` } }), name)),
  );
  const note =
    sloMs <= 4 * latencyMs ? "the line is the deadline" : `the deadline, at ${format.duration(sloMs)}, is outside the chart`;
  const endMs = sloMs <= 4 * latencyMs ? Math.max(sloMs, latencyMs) * 1.05 : latencyMs * 1.05;
  const times = request.steps.map((step) => step.t_ms);
  const thresholds = request.steps.map((step) => step.threshold);
  const dots = instances.map((name) => request.steps.map((step) => (step.instance === name ? step.threshold : null)));
  stepsChart?.remove();
  stepsChart = new Chart(place, () => ({
    height: 200,
    legend: { show: false },
    padding: [8, 20, 0, 0],
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: false, range: () => [0, endMs] }, y: { range: () => [0, 1] } },
    axes: [axis({ size: 28, values: (_, at) => at.map((ms) => format.duration(ms)) }), axis({ size: 36 })],
    series: [
      {},
      { stroke: css("--border-strong"), width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
      ...colours.map((colour) => ({ paths: () => null, points: { show: true, size: 8, fill: css(colour), stroke: css(colour) } })),
    ],
    hooks: { draw: [(plot) => deadline(plot, sloMs)] },
  }));
  requestAnimationFrame(() => stepsChart?.show([times, thresholds, ...dots]));
  return [h("div", {}, h("h3", {}, "Threshold of each step"), h("p", { className: "muted" }, `Over the time at which steps were sent; ${note}.`)), place, legend];
}

function deadline(plot, sloMs) {
  const { ctx, bbox } = plot;
  const x = plot.valToPos(sloMs, "x", true);
  if (x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = css("--bad");
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

function stepTable(steps) {
  const columns = ["Step", "Sent at", "Block", "Kind", "Threshold", "Predicted", "To deadline", "Instance"];
  const numbers = [0, 1, 2, 4, 5, 6];
  const cell = (tag, i, text) => h(tag, { className: numbers.includes(i) ? "number" : "" }, text);
  const rows = steps.map((step) =>
    [
      step.step,
      format.duration(step.t_ms),
      step.block,
      step.kind,
      format.threshold(step.threshold),
      format.duration(step.time_left_ms),
      format.duration(step.slo_left_ms),
      step.instance,
    ].map((text, i) => cell("td", i, `${text}`)),
  );
  return h(
    "div",
    { className: "table-wrap", tabindex: "0", role: "region", "aria-label": "Steps" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...columns.map((name, i) => cell("th", i, name)))),
      h("tbody", {}, ...rows.map((cells) => h("tr", {}, ...cells))),
    ),
  );
}
