// The canvas of one run: a cell for each output token, filled when a step commits it.
import { h } from "./dom.js";
import * as format from "./format.js";

const MIN_SHADED_CONFIDENCE = 0.3; // lower confidences have the same colour

/** The steps of a run received so far, each with the cells that it changed. */
export class Recording {
  constructor(length) {
    this.length = length; // tokens
    this.steps = []; // [{cells: [{position, token, text, confidence, committed, draft, replaces}]}]
    this.whole = false; // whether all steps are received; a text may end before its last block
  }

  /** The cells after `count` steps, by position; each with the index of its step, and the texts that it replaced. */
  cellsAfter(count) {
    const cells = Array(this.length).fill(null);
    this.steps.slice(0, count).forEach(({ cells: changed }, index) => {
      for (const cell of changed) if (cell.position < this.length) cells[cell.position] = next(cells[cell.position], cell, index);
    });
    return cells;
  }
}

/** The state of a cell after an event; a draft that is committed unchanged keeps its step. */
function next(before, cell, index) {
  const replaced = before?.draft ? before.replaced : [];
  if (cell.replaces !== undefined) return { ...cell, index, replaced: [...replaced, cell.replaces] };
  return { ...cell, index: before?.draft ? before.index : index, replaced };
}

const WHITESPACE = { "\n": "⏎", "\t": "⇥", " ": "␣" };

function label(text) {
  if (text === "") return "·"; // a special token
  return text.trim() || WHITESPACE[text[0]] || "␣";
}

export class CanvasView {
  /** Draws in `element`; `readout` describes the cell under the cursor. */
  constructor(element, readout) {
    this.element = element;
    this.readout = readout;
    this.cells = [];
    this.states = [];
    this.cursor = null;
    element.addEventListener("keydown", (event) => this.moveCursor(event));
    element.addEventListener("pointerover", (event) => this.point(this.cells.indexOf(event.target)));
    element.addEventListener("pointerleave", () => this.point(-1));
    element.addEventListener("blur", () => this.point(-1));
  }

  /** Empty the canvas. Its first block is shorter if the prompt has the rest of it. */
  reset(length, blockLength) {
    this.cells = Array.from({ length }, () => h("div", { className: "cell" }));
    this.states = Array(length).fill(null);
    const blocks = [];
    for (let start = 0, end = length % blockLength || blockLength; start < length; start = end, end += blockLength) {
      blocks.push(h("div", { className: "block" }, ...this.cells.slice(start, end)));
    }
    this.element.replaceChildren(...blocks);
    this.updateLabel(0);
  }

  /** Draw a recording after `count` steps. */
  show(recording, count) {
    const states = recording.cellsAfter(count);
    states.forEach((state, position) => this.draw(position, state, state?.index === count - 1));
    this.states = states;
    const filled = states.filter((state) => state?.committed).length;
    const ended = recording.whole && count === recording.steps.length;
    const open = count === 0 || ended ? null : (this.cells[states.findIndex((state) => !state?.committed)] ?? null);
    for (const block of this.element.children) block.classList.toggle("current", block.contains(open));
    const end = states.findIndex((state) => !state?.committed || (state.text === "" && !state.pinned));
    if (ended && end >= 0) this.cells.slice(end).forEach((cell) => cell.classList.add("unused"));
    this.updateLabel(filled);
    this.updateReadout();
  }

  draw(position, state, fresh) {
    const cell = this.cells[position];
    const kind = state === null ? "" : state.committed ? "committed" : state.draft ? "draft" : "provisional";
    const edited = state?.replaced.length ? "edited" : "";
    const pinned = state?.pinned ? "pinned" : "";
    const special = state !== null && state.text === "" ? "special" : "";
    const cursor = position === this.cursor ? "cursor" : "";
    cell.className = ["cell", kind, edited, pinned, special, fresh && "fresh", cursor].filter(Boolean).join(" ");
    cell.textContent = state === null ? "" : label(state.text);
    const shade = state === null ? 0 : Math.max(0, (state.confidence - MIN_SHADED_CONFIDENCE) / (1 - MIN_SHADED_CONFIDENCE));
    cell.style.setProperty("--sure", `${(shade * 100).toFixed(1)}%`);
  }

  updateLabel(filled) {
    this.element.setAttribute("aria-label", `Canvas: ${filled} of ${this.cells.length} tokens committed`);
  }

  moveCursor(event) {
    const columns = getComputedStyle(this.element.firstChild).gridTemplateColumns.split(" ").length;
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const from = this.cursor ?? -1;
    this.point(Math.min(this.cells.length - 1, Math.max(0, this.cursor === null ? 0 : from + move)));
  }

  point(position) {
    this.cells[this.cursor]?.classList.remove("cursor");
    this.cursor = position < 0 ? null : position;
    this.cells[this.cursor]?.classList.add("cursor");
    this.updateReadout();
  }

  updateReadout() {
    if (this.cursor === null) {
      this.readout.textContent = "";
      return;
    }
    const state = this.states[this.cursor];
    if (state === null) {
      this.readout.textContent = `Position ${this.cursor}: masked`;
      return;
    }
    const origin = state.pinned ? "given" : `confidence ${format.threshold(state.confidence)}, step ${state.index + 1}`;
    const shown = (text) => `“${text.trim() || label(text)}”`;
    const edits = state.replaced.length ? `, in place of ${state.replaced.map(shown).join(", ")}` : "";
    this.readout.textContent = `Position ${this.cursor}: ${shown(state.text)}, ${origin}${edits}`;
  }
}
