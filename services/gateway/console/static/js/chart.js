// uPlot in the console's style. A change of theme redraws, as colours are read from the theme.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The width of a plot: that of its element, with a minimum. */
const widthOf = (element) => Math.max(120, Math.floor(element.clientWidth));

export class Chart {
  /** `options()` returns uPlot's options without the width; it is called again for each theme. */
  constructor(element, options) {
    this.element = element;
    this.options = options;
    this.data = null;
    this.plot = null;
    this.redraw = () => this.draw();
    document.addEventListener("themechange", this.redraw);
    this.resizing = new ResizeObserver(() => this.plot?.setSize({ width: widthOf(element), height: this.plot.height }));
    this.resizing.observe(element);
  }

  show(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.draw();
  }

  draw() {
    if (this.data === null) return;
    this.plot?.destroy();
    this.plot = new uPlot({ width: widthOf(this.element), ...this.options() }, this.data, this.element);
  }

  remove() {
    document.removeEventListener("themechange", this.redraw);
    this.resizing.disconnect();
    this.plot?.destroy();
  }
}

/** An axis in the theme's colours. */
export function axis(more = {}) {
  return {
    stroke: css("--muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: css("--border"), width: 1 },
    ticks: { show: false },
    ...more,
  };
}

/** A line in the theme's colour `variable`. */
export function line(variable, more = {}) {
  const stroke = css(variable);
  return { stroke, width: 1.75, points: { show: false }, spanGaps: false, ...more };
}

export const fillOf = (variable) => `color-mix(in srgb, ${css(variable)} 12%, transparent)`;

export { css };
