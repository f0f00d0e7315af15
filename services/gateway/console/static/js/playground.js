// The playground: one prompt, two runs side by side, each with its own SLO and quality floor.
import { byId, h } from "./dom.js";
import * as format from "./format.js";
import { Panel } from "./panel.js";

const EXAMPLES = [
  "We have 10 lemons, get 22 more and share them equally among 2 bags. How many lemons does each bag get?",
  "Adam has 46 tickets and adds 11 more tickets, and loses 17. How many tickets does Adam have in the end?",
  "I have 9 cookies, get 3 more and share them equally among 2 students. How many cookies does each student get?",
];
const OUTPUTS = [32, 64, 128, 256]; // tokens, whole blocks
const RUNS = [
  { name: "A", sloMs: 5000, floor: 0 },
  { name: "B", sloMs: 100, floor: 0 },
];

/** `models` fetches GET /v1/models. */
export function setUpPlayground(models) {
  const prompt = byId("prompt");
  const output = byId("output");
  const panels = RUNS.map((run) => new Panel(run, () => start([panels[RUNS.indexOf(run)]])));
  byId("panels").append(...panels.map((panel) => panel.element));
  prompt.value = EXAMPLES[0];
  byId("examples").append(
    ...EXAMPLES.map((text) => h("button", { type: "button", title: text, onclick: () => ((prompt.value = text), prompt.focus()) }, text)),
  );
  output.append(...OUTPUTS.map((tokens) => h("option", { value: tokens, selected: tokens === 64 }, `${tokens} tokens`)));

  const clear = () => panels.forEach((panel) => panel.clear(Number(output.value)));
  output.addEventListener("change", clear);
  clear();

  async function start(chosen) {
    if (!byId("ask").reportValidity()) return;
    byId("comparison").textContent = "";
    const request = { prompt: prompt.value, template: byId("template").value, tokens: Number(output.value), slow: () => byId("slow").checked };
    try {
      request.model = (await models()).data[0].id;
    } catch (error) {
      chosen.forEach((panel) => panel.fail(error.message));
      return;
    }
    await Promise.all(chosen.map((panel) => panel.run(request)));
    byId("comparison").textContent = compare(...panels.map((panel) => panel.result));
  }

  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    start(panels);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      start(panels);
    }
  });
}

/** A comparison of two results of the same prompt; empty without two. */
function compare(a, b) {
  if (!a || !b || a.prompt !== b.prompt || a.template !== b.template || a.serving.steps === undefined || b.serving.steps === undefined) return "";
  const texts = a.text === b.text ? "The replies are the same." : "The replies differ.";
  return (
    `A took ${format.plural(a.serving.steps, "step")} and ${format.duration(a.serving.latency_ms)} at a mean threshold of ` +
    `${format.threshold(a.serving.mean_threshold)}; B ${format.plural(b.serving.steps, "step")} and ` +
    `${format.duration(b.serving.latency_ms)} at ${format.threshold(b.serving.mean_threshold)}. ${texts}`
  );
}
