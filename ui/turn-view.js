/** One turn as it is shown: the question, the steps of the agent with its calls, and what it cost. */

import { SentenceAnnouncer } from "./announce.js";
import { callCards } from "./calls.js";
import { count, money, number, when } from "./format.js";
import { long } from "./long.js";
import { Markdown } from "./markdown.js";
import { html, render } from "lit-html";

/** @typedef {import("./turn.js").Turn} Turn */

/** @type {Record<string, string>} */
const FINISHES = {
  cancelled: "Stopped. The answer so far was kept.",
  deadline: "The time limit was reached. The answer so far was kept.",
  length: "The answer reached the maximum length.",
  max_turns: "The agent reached its maximum number of steps.",
  content_filter: "The provider cut the answer.",
};

const MAX_STEPS = 100; // that are shown at once

export class TurnView {
  element = document.createElement("article");
  /** @type {{markdown: Markdown, text: string, complete: boolean}[]} by the number of the step */
  #texts = [];
  #announcer = new SentenceAnnouncer();
  #wasLive = false;
  /** @type {Turn | null} */
  #turn = null;
  #revision = -1;

  constructor() {
    this.element.className = "turn";
  }

  /**
   * Show a turn. A turn that has ended is rendered once, until `revision` changes.
   * @param {Turn} turn
   * @param {import("./calls.js").CallContext} context
   * @param {number} revision grows when approvals have changed
   */
  update(turn, context, revision) {
    if (turn === this.#turn && revision === this.#revision && !turn.running) return;
    this.#turn = turn;
    this.#revision = revision;
    this.#announce(turn);
    render(this.#content(turn, context), this.element);
  }

  /** @param {Turn} turn */
  #announce(turn) {
    this.#wasLive ||= turn.running;
    if (this.#wasLive) this.#announcer.update(turn.steps.map((step) => step.text).join("\n"), !turn.running);
  }

  /**
   * @param {Turn} turn
   * @param {import("./calls.js").CallContext} context
   */
  #content(turn, context) {
    return html`
      ${turn.question === null ? "" : html`<div class="question"><h3 class="unseen">You</h3><div class="text">${turn.question}</div></div>`}
      <div class="answer" aria-busy=${turn.running}>
        <h3 class="unseen">Answer</h3>
        ${this.#steps(turn, context, turn.steps.length)}
        ${turn.running ? html`<p class="progress quiet" role="status">${turn.progress ?? (turn.steps.length ? "…" : "Thinking …")}</p>` : ""}
        ${turn.finishReason && Object.hasOwn(FINISHES, turn.finishReason) ? html`<p class="quiet">${FINISHES[turn.finishReason]}</p>` : ""}
      </div>
      <footer class="quiet">${cost(turn)} ${turn.askedAt ? html`<time datetime=${turn.askedAt}>${when(turn.askedAt)}</time>` : ""}
        ${turn.compacted ? "summarised" : ""}</footer>`;
  }

  /**
   * Return the last steps before `end`, and offer the earlier ones.
   * @param {Turn} turn
   * @param {import("./calls.js").CallContext} context
   * @param {number} end
   * @returns {import("./resource.js").Content}
   */
  #steps(turn, context, end) {
    const first = Math.max(0, end - MAX_STEPS);
    const last = turn.steps.length - 1;
    return html`${first ? long(count(first, "earlier step"), () => this.#steps(turn, context, first)) : ""}
      ${turn.steps.slice(first, end).map(
        (step, offset) => html`<div class=${first + offset === last ? "step last" : "step"}>
          ${this.#text(first + offset, step.text, !turn.running || first + offset < last)} ${callCards(step.calls, context)}
        </div>`,
      )}`;
  }

  /**
   * @param {number} index
   * @param {string} text
   * @param {boolean} complete
   */
  #text(index, text, complete) {
    if (!text) return "";
    let shown = this.#texts[index];
    // The history may differ from a complete text, and a new attempt starts from the beginning.
    if (!shown || !text.startsWith(shown.text) || (shown.complete && text !== shown.text)) {
      shown = this.#texts[index] = { markdown: new Markdown(), text: "", complete: false };
    }
    shown.markdown.update(text, complete);
    shown.text = text;
    shown.complete = complete;
    return shown.markdown.element;
  }
}

/** @param {Turn} turn */
function cost({ usage, cost }) {
  if (!usage) return "";
  return html`<span class="cost">${number(usage.total_tokens)} tokens${cost === null ? "" : html` · ${money(cost)}`}</span>`;
}
