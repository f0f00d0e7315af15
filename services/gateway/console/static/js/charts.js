// The live charts of the last minutes, one point per second, or of the last hour.
import { axis, Chart, fillOf, line } from "./chart.js";
import { h } from "./dom.js";
import * as format from "./format.js";

const HEIGHT = 128; // px
const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5].map((power) => digit * 10 ** power)).sort((a, b) => a - b); // steps of counts
const seconds = (ms) => (ms === null ? null : ms / 1000);

// `lines` are [name, colour, value of a load, text of a value]; `range` fixes the scale.
const CHARTS = [
  { title: "Requests", lines: [["", "--series-1", (l) => l.rps, (v) => [format.number(v, 1), "/s"]]] },
  {
    title: "SLO attainment",
    range: [0, 1],
    axis: (v) => `${Math.round(v * 100)} %`,
    lines: [["", "--series-1", (l) => l.slo_attainment, (v) => [v === null ? "–" : format.number(v * 100, 1), "%"]]],
  },
  {
    title: "Mean threshold",
    range: [0, 1],
    lines: [["", "--series-1", (l) => l.mean_threshold, (v) => [format.threshold(v), ""]]],
  },
  {
    title: "Latency",
    axis: (v) => `${v} s`,
    lines: [
      ["p50", "--series-1", (l) => seconds(l.latency_p50_ms), (v) => [v === null ? "–" : format.number(v, 2), "s"]],
      ["p99", "--series-2", (l) => seconds(l.latency_p99_ms), (v) => [v === null ? "–" : format.number(v, 2), "s"]],
    ],
  },
  {
    title: "Requests in the cell",
    whole: true,
    lines: [
      ["running", "--series-1", (l) => l.running, (v) => [format.number(v), ""]],
      ["waiting", "--series-2", (l) => l.waiting, (v) => [format.number(v), ""]],
      ["SLO infeasible", "--series-3", (l) => l.infeasible, (v) => [format.number(v), ""]],
    ],
  },
  { title: "Output", lines: [["", "--series-1", (l) => l.tokens_per_s, (v) => [format.number(v), "tokens/s"]]] },
  shares("KV cache in use", "kv_cache_use"),
  shares("Prefix hits", "prefix_hit_rate"),
];
const RANGES = [
  ["5 minutes", 300],
  ["1 hour", 3600],
];

/** The chart of a share that is 0 to 1. */
function shares(title, name) {
  return {
    title,
    range: [0, 1],
    axis: (v) => `${Math.round(v * 100)} %`,
    lines: [["", "--series-1", (l) => l[name], (v) => [v === null ? "–" : format.number(v * 100, 1), "%"]]],
  };
}

class LoadChart {
  constructor(parent, { title, lines, range, axis: tick, whole }) {
    this.lines = lines;
    this.values = lines.map(() => h("span", {}));
    this.at = h("span", { className: "chart-at" });
    this.loads = [];
    this.hovered = null;
    const plot = h("div", { className: "plot" });
    const figure = h(
      "figure",
      { className: "card chart", "data-chart": title, style: { margin: "0" } },
      h("div", { className: "chart-head" }, h("h2", {}, title), this.at),
      h(
        "div",
        { className: "chart-values" },
        ...lines.map(([name, colour], i) =>
          h(
            "span",
            { className: "chart-value" },
            lines.length > 1 ? h("span", { className: "dot", style: { background: `var(${colour})` } }) : null,
            this.values[i],
            name ? h("small", {}, ` ${name}`) : null,
          ),
        ),
      ),
      plot,
    );
    parent.append(figure);
    this.chart = new Chart(plot, () => this.options(range, tick, whole));
  }

  options(range, tick, whole) {
    const y = range ? { range: () => range } : { range: (_, low, high) => [0, niceTop(high)] };
    return {
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 16, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true }, y },
      axes: [
        axis({ size: 24, space: 64, grid: { show: false }, values: (_, at) => at.map((t) => format.clock(t).slice(0, 5)) , incrs: [60, 120, 300, 600, 900, 1200] }),
        axis({ size: 42, space: 32, ...(tick && { values: (_, at) => at.map(tick) }), ...(whole && { incrs: WHOLE }) }),
      ],
      series: [{}, ...this.lines.map(([name, colour]) => line(colour, { label: name, fill: this.lines.length === 1 ? fillOf(colour) : undefined }))],
      hooks: { setCursor: [(plot) => this.hover(plot.cursor.idx)] },
    };
  }

  hover(index) {
    this.hovered = index ?? null;
    this.updateValues();
  }

  show(loads) {
    this.loads = loads;
    this.chart.show([loads.map((load) => load.t_s), ...this.lines.map(([, , value]) => loads.map(value))]);
    this.updateValues();
  }

  /** Show the values under the cursor, or the latest. */
  updateValues() {
    const load = this.loads[this.hovered ?? this.loads.length - 1];
    if (!load) return;
    this.at.textContent = this.hovered === null ? "" : format.clock(load.t_s);
    this.lines.forEach(([, , value, text], i) => {
      const [amount, unit] = text(value(load) ?? null);
      this.values[i].replaceChildren(amount, unit ? h("small", {}, ` ${unit}`) : "");
    });
  }
}

/** The maximum of a scale from 0: a round number above `high`. */
function niceTop(high) {
  if (!(high > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(high));
  return power * [1, 1.5, 2, 3, 5, 7.5, 10].find((step) => step * power >= high * 1.05 || step === 10);
}

export class Charts {
  constructor(parent, ranges) {
    this.charts = CHARTS.map((chart) => new LoadChart(parent, chart));
    this.loads = [];
    this.buttons = RANGES.map(([name, seconds]) => h("button", { type: "button", onclick: () => this.select(seconds) }, name));
    ranges.replaceChildren(...this.buttons);
    this.select(RANGES[0][1]);
  }

  /** Show this many seconds. */
  select(seconds) {
    this.seconds = seconds;
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", `${RANGES[i][1] === seconds}`));
    this.show(this.loads);
  }

  show(loads) {
    this.loads = loads;
    const since = (loads.at(-1)?.t_s ?? 0) - this.seconds;
    const shown = loads.filter((load) => load.t_s > since);
    for (const chart of this.charts) chart.show(shown);
  }
}
