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
  { name: "B", sloMs: 300, floor: 0.7 },
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

  const schema = byId("schema");
  schema.addEventListener("input", () => schema.setCustomValidity(wrongJson(schema.value)));

  async function start(chosen) {
    if (!byId("ask").reportValidity()) return;
    byId("comparison").textContent = "";
    const form = { template: byId("template").value, schema: schema.value.trim() };
    chosen.forEach((panel) => panel.clear(Number(output.value)));
    const request = { prompt: prompt.value, form, tokens: Number(output.value), slow: () => byId("slow").checked };
    try {
      request.model = (await models()).data[0].id;
    } catch (error) {
      chosen.forEach((panel) => panel.fail(error.message));
      return;
    }
    const runs = [];
    for (const panel of chosen) {
      runs.push(panel.run(request));
      if (panel !== chosen.at(-1) && !panels[1].isSloSet) panels[1].follow(await panel.received);
    }
    await Promise.all(runs);
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

/** Why a text is not a JSON object; empty if it is one, or empty. */
function wrongJson(text) {
  if (!text.trim()) return "";
  try {
    return JSON.parse(text)?.constructor === Object ? "" : "A JSON schema is an object, such as {\"type\": \"object\"}";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}

/** A comparison of two results of the same prompt and form; empty without two. */
function compare(a, b) {
  if (!a || !b || a.prompt !== b.prompt || a.form.template !== b.form.template || a.form.schema !== b.form.schema) return "";
  if (a.serving.steps === undefined || b.serving.steps === undefined) return "";
  const texts = a.text === b.text ? "The replies are the same." : "The replies differ.";
  return (
    `A took ${format.plural(a.serving.steps, "step")} and ${format.duration(a.serving.latency_ms)} at a mean threshold of ` +
    `${format.threshold(a.serving.mean_threshold)}; B ${format.plural(b.serving.steps, "step")} and ` +
    `${format.duration(b.serving.latency_ms)} at ${format.threshold(b.serving.mean_threshold)}. ${texts}`
  );
}
