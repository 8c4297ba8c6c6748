/** The turns of a conversation as they are shown, and where the user has scrolled to. */

import { approvalsOf } from "./turn.js";
import { TurnView } from "./turn-view.js";

const NEAR_END = 40; // pixels

/** One agent's log. It stays at its end while the user is there, and else where the user left it. */
export class Log {
  /** @type {Map<string, TurnView>} by the key of their turns */
  #views = new Map();
  /** @type {number | null} pixels from the top, or null at the end */
  #scroll = null;
  #app;
  #conversation;

  /**
   * @param {import("./app.js").App} app
   * @param {import("./conversation.js").Conversation} conversation
   */
  constructor(app, conversation) {
    this.#app = app;
    this.#conversation = conversation;
  }

  /** Return an element for each turn. */
  elements() {
    const { turns, live, history } = this.#conversation;
    // The history has a turn that ended on another connection as soon as this one still reads of it.
    const shown = live && !turns.some((turn) => turn.answerId !== null && turn.answerId === live.answerId) ? [...turns, live] : turns;
    const keys = new Set(shown.map((turn) => turn.key));
    for (const key of this.#views.keys()) if (!keys.has(key)) this.#views.delete(key);
    const context = {
      app: this.#app,
      approvals: history.approvals,
      decided: (/** @type {any} */ approval) => {
        history.decide(approval);
        this.#app.changed();
      },
    };
    return shown.map((turn) => {
      let view = this.#views.get(turn.key);
      if (!view) this.#views.set(turn.key, (view = new TurnView()));
      view.update(turn, context, history.revision);
      return view.element;
    });
  }

  /** True if the agent waits for a word of the user: all that waited in its last turn is decided. */
  get canContinue() {
    const { turns, history, busy } = this.#conversation;
    const last = turns.at(-1);
    const ids = last && !busy ? approvalsOf(last) : [];
    return ids.length > 0 && ids.every((id) => (history.approvals.get(id)?.status ?? "pending") !== "pending");
  }

  /** Remember where the user is. */
  saveScroll() {
    const log = document.getElementById("log");
    if (log) this.#scroll = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END ? null : log.scrollTop;
  }

  /** Put the log where it was, or keep it at its end. */
  restoreScroll() {
    const log = document.getElementById("log");
    // Nothing moves under the pointer or the focus of a user who decides about a call.
    if (log?.querySelector(".approval.pending:is(:hover, :focus-within)")) return;
    if (log) log.scrollTop = this.#scroll ?? log.scrollHeight;
  }

  /** Go to the end and stay there. */
  scrollToEnd() {
    this.#scroll = null;
  }
}
