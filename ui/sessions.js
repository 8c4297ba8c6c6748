/** The list of an agent's sessions. */

import { when } from "./format.js";
import { Pages } from "./pages.js";
import { fragment } from "./router.js";
import { html } from "lit-html";

/**
 * Return what a session is called: its title, or when it began.
 * @param {{title: string | null, created_at: string}} session
 */
export function sessionName({ title, created_at: created }) {
  return title || `Session of ${when(created)}`;
}

/** An agent's sessions, newest first, page by page. */
export class SessionList {
  #agent;
  /** @type {Pages<any>} */
  #pages;

  /**
   * @param {import("./app.js").App} app
   * @param {string} agent
   */
  constructor(app, agent) {
    this.#agent = agent;
    this.#pages = new Pages(app, `a1/agents/${encodeURIComponent(agent)}/sessions?limit=50`, "sessions");
    this.reload();
  }

  /** Read the list again. */
  reload() {
    void this.#pages.load();
  }

  /**
   * @param {string | null} open the id of the open session
   * @param {(session: any) => void} remove
   * @param {boolean} isQuiet the conversation shows an error
   */
  render(open, remove, isQuiet) {
    return this.#pages.show(
      (sessions) => html`<ul class="sessions">
          ${sessions.map(
            (session) => html`<li class=${session.id === open ? "open" : ""}>
              <a href=${fragment("chat", this.#agent, session.id)} aria-current=${session.id === open ? "true" : "false"}>
                <bdi>${sessionName(session)}</bdi>
                <span class="quiet">${session.archived_at ? "archived · " : ""}${session.active_turn ? "answering · " : ""}${when(session.updated_at)}</span>
              </a>
              <button type="button" class="link" aria-label="Delete the session ${sessionName(session)}" @click=${() => remove(session)}>Delete</button>
            </li>`,
          )}
        </ul>`,
      html`<p class="quiet">No sessions yet.</p>`,
      isQuiet,
    );
  }
}
