/** The list of an agent's sessions. */

import { when } from "./format.js";
import { Resource } from "./resource.js";
import { fragment } from "./router.js";
import { html } from "./vendor-lit-html.js";

/** An agent's sessions, newest first, page by page. */
export class SessionList {
  #app;
  #path;
  #agent;
  /** @type {Resource<{sessions: any[], next: string | null}>} */
  #pages;

  /**
   * @param {import("./app.js").App} app
   * @param {string} agent
   */
  constructor(app, agent) {
    this.#app = app;
    this.#agent = agent;
    this.#path = `a1/agents/${encodeURIComponent(agent)}/sessions`;
    this.#pages = new Resource(() => this.#read(null), (error) => (app.refused(error), app.changed()));
    void this.#pages.load();
  }

  /** Read the list again. */
  reload() {
    void this.#pages.load();
  }

  close() {
    this.#pages.close();
  }

  /** @param {string | null} cursor */
  async #read(cursor) {
    const page = await this.#app.client.call(`${this.#path}?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    const before = cursor ? (this.#pages.value?.sessions ?? []) : [];
    return { sessions: [...before, ...page.sessions], next: page.next_cursor };
  }

  async #more() {
    const next = this.#pages.value?.next;
    if (!next) return;
    try {
      this.#pages.value = await this.#read(next);
    } catch (error) {
      if (!this.#app.refused(error)) this.#pages.error = error;
    }
    this.#app.changed();
  }

  /**
   * @param {string | null} open the id of the open session
   * @param {(session: any) => void} remove
   */
  render(open, remove) {
    return this.#pages.show(
      ({ sessions, next }) => html`<ul class="sessions">
          ${sessions.map(
            (session) => html`<li class=${session.id === open ? "open" : ""}>
              <a href=${fragment("chat", this.#agent, session.id)} aria-current=${session.id === open ? "true" : "false"}>
                <bdi>${session.title ?? when(session.created_at)}</bdi>
                <span class="quiet">${session.archived_at ? "archived · " : ""}${session.active_turn ? "answering · " : ""}${when(session.updated_at)}</span>
              </a>
              <button type="button" class="link" aria-label="Delete the session ${session.title ?? when(session.created_at)}" @click=${() => remove(session)}>Delete</button>
            </li>`,
          )}
        </ul>
        ${next ? html`<button type="button" @click=${() => this.#more()}>More sessions</button>` : ""}`,
      { empty: ({ sessions }) => (sessions.length ? null : html`<p class="quiet">No sessions yet.</p>`) },
    );
  }
}
