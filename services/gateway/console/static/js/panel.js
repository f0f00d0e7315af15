// One run of the playground: its settings, its canvas, its reply and serving statistics.
import { events } from "./api.js";
import { CanvasView, Recording } from "./canvas.js";
import { badge, facts, h } from "./dom.js";
import * as format from "./format.js";

const SLOS_MS = [
  50, 60, 80, 100, 125, 150, 175, 200, 225, 250, 275, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000, 1250, 1500, 2000, 2500, 3000, 4000,
  5000, 6000, 8000, 10_000, 12_000, 15_000, 20_000, 30_000, 60_000,
];
const FOLLOWED = 0.9; // share of the other run's latency that the SLO is until the user sets it
const SLOW_MS = 140; // per step in slow motion

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function slider(label, id, { min, max, step, value }, text) {
  const output = h("output", { htmlFor: id });
  const input = h("input", { id, type: "range", min, max, step });
  input.value = value;
  const update = () => {
    output.textContent = text(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", update);
  update();
  return [input, h("div", { className: "slider" }, h("label", { htmlFor: id }, label, output), input), update];
}

export class Panel {
  /** `onRun` is called when the panel's own button is pressed. */
  constructor({ name, sloMs, floor }, onRun) {
    this.name = name;
    this.recording = null;
    this.result = null;
    this.abort = null;
    const at = SLOS_MS.indexOf(sloMs);
    const slo = { min: 0, max: SLOS_MS.length - 1, step: 1, value: at };
    let sloSlider, floorSlider;
    [this.slo, sloSlider, this.updateSlo] = slider("SLO", `slo-${name}`, slo, (i) => format.duration(SLOS_MS[i]));
    [this.floor, floorSlider] = slider("Quality floor", `floor-${name}`, { min: 0, max: 0.95, step: 0.05, value: floor }, (value) =>
      value ? `threshold ≥ ${format.threshold(value)}` : "none",
    );
    this.isSloSet = false;
    this.slo.addEventListener("input", () => (this.isSloSet = true));
    this.button = h("button", { type: "button", onclick: () => (this.abort ? this.abort.abort() : onRun()) }, "Run");
    this.state = h("span", { role: "status" });
    this.canvas = h("div", { className: "canvas", tabindex: "0", role: "group", "aria-roledescription": "canvas" });
    this.readout = h("div", { className: "readout", "aria-live": "polite" });
    this.view = new CanvasView(this.canvas, this.readout);
    this.scrub = h("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": `Step shown of run ${name}`, disabled: true });
    this.scrub.addEventListener("input", () => this.showStep(Number(this.scrub.value)));
    this.step = h("output", {});
    this.reply = h("div", { className: "reply", role: "group", "aria-label": `Reply of run ${name}` });
    this.facts = h("div", {});
    const head = h("div", { className: "panel-head" }, h("h2", { className: "panel-name" }, name), this.state, h("span", { className: "grow" }), this.button);
    const legend = h("div", { className: "legend" }, h("span", {}, "Confidence"), h("span", {}, "low"), h("span", { className: "ramp" }), h("span", {}, "high"));
    this.element = h(
      "article",
      { className: "card panel", "aria-label": `Run ${name}`, "data-run": name },
      head,
      h("div", { className: "sliders" }, sloSlider, floorSlider),
      h("div", {}, this.canvas),
      h("div", { className: "panel-head" }, legend, h("span", { className: "grow" }), this.readout),
      h("div", { className: "scrub" }, this.scrub, this.step),
      this.reply,
      this.facts,
    );
  }

  /** Remove the last run; the canvas has this many tokens until the gateway reports its length. */
  clear(tokens) {
    this.abort?.abort();
    this.fit({ tokens, block_length: tokens });
    this.result = null;
    this.state.replaceChildren();
    this.reply.className = "reply";
    this.reply.textContent = "";
    this.facts.replaceChildren();
    this.showStep(0);
  }

  /** Take a SLO that is shorter than the other run took, unless the user has set it. */
  follow(serving) {
    if (this.isSloSet || !serving?.latency_ms) return;
    this.slo.value = Math.max(0, SLOS_MS.findLastIndex((ms) => ms <= FOLLOWED * serving.latency_ms));
    this.updateSlo();
  }

  /** Send the prompt and draw its steps until the reply is complete. */
  async run({ model, prompt, form, tokens, slow }) {
    this.clear(tokens);
    const abort = (this.abort = new AbortController());
    this.button.textContent = "Stop";
    this.state.replaceChildren(badge("waiting for an instance", "warn"));
    const body = {
      model,
      messages: [{ role: "user", content: prompt }],
      ...(form.template ? { template: form.template } : { max_tokens: tokens }),
      ...(form.schema && { response_format: { type: "json_schema", json_schema: { name: "reply", schema: JSON.parse(form.schema) } } }),
      slo_ms: SLOS_MS[this.slo.value],
      min_threshold: Number(this.floor.value),
      stream: true,
      canvas: true,
    };
    try {
      const whole = this.receive(body, abort.signal);
      this.received = whole.then(({ serving }) => serving, () => null);
      await Promise.all([whole, this.play(whole, abort.signal, slow)]);
      const { text, serving } = await whole;
      if (serving === null) throw new Error("the stream ended early");
      this.finish({ prompt, form, text, serving });
    } catch (error) {
      if (this.abort === abort) this.fail(abort.signal.aborted ? "Stopped." : error.message);
    } finally {
      if (this.abort === abort) {
        this.abort = null;
        this.button.textContent = "Run";
      }
    }
  }

  /** Record the stream. Returns: the text and the serving statistics. */
  async receive(body, signal) {
    let text = "";
    let serving = null;
    for await (const event of events("v1/chat/completions", { body, signal })) {
      if (event.error) throw new Error(event.error.message);
      if (event.object === "dilaserve.canvas") {
        if (event.tokens) this.fit(event);
        this.recording.steps.push(event);
      }
      text += event.choices?.[0]?.delta?.content ?? "";
      if (this.recording.steps.length) this.recording.steps.at(-1).reply = text;
      serving = event.dilaserve ?? serving;
    }
    return { text, serving };
  }

  /** Empty the canvas and set its length and that of its blocks. */
  fit({ tokens, block_length: blockLength }) {
    this.recording = new Recording(tokens);
    this.view.reset(tokens, blockLength);
  }

  /** Draw the steps as they arrive, in slow motion at most one per SLOW_MS. */
  async play(whole, signal, slow) {
    let ended = false;
    whole.finally(() => (ended = true)).catch(() => {});
    for (let shown = 0; this.abort?.signal === signal && !signal.aborted && (!ended || shown < this.recording.steps.length); ) {
      const received = this.recording.steps.length;
      if (shown < received) {
        shown = slow() ? shown + 1 : received;
        this.showStep(shown);
        this.state.replaceChildren(badge("running", "info"));
        this.reply.textContent = this.recording.steps[shown - 1].reply ?? this.reply.textContent;
        await pause(slow() ? SLOW_MS : 0);
      } else {
        await pause(15);
      }
    }
  }

  showStep(count) {
    const received = this.recording.steps.length;
    this.scrub.max = received;
    this.scrub.value = count;
    this.scrub.disabled = received === 0;
    this.step.textContent = received ? `Step ${count} of ${received}` : "No step yet";
    this.scrub.setAttribute("aria-valuetext", this.step.textContent);
    this.view.show(this.recording, count);
  }

  finish(result) {
    this.result = result;
    this.recording.whole = true;
    this.showStep(this.recording.steps.length);
    const { serving } = result;
    this.state.replaceChildren(serving.slo_met ? badge("SLO met", "good") : badge("SLO missed", "warn"));
    this.reply.textContent = result.text;
    this.facts.replaceChildren(
      facts([
        ["Latency", format.duration(serving.latency_ms)],
        ["Steps", `${format.number(serving.steps)} (${format.number(serving.recompute_steps)} recompute)`],
        ["Mean threshold", format.threshold(serving.mean_threshold)],
        ["Lowest", format.threshold(serving.min_threshold)],
        ["Instances", (serving.instances ?? []).join(", ")],
        ["Request", h("a", { href: `#requests/${serving.request_id}`, className: "mono" }, serving.request_id.slice(0, 8))],
      ]),
    );
  }

  fail(message) {
    this.state.replaceChildren(badge("no reply", "bad"));
    this.reply.classList.add("wrong");
    this.reply.textContent = message;
  }
}
