/** The chat view: an agent picker, the agent's sessions, and the open conversation. */

import { composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { money, sum } from "./format.js";
import { failure, Resource } from "./resource.js";
import { fragment } from "./router.js";
import { SessionList } from "./sessions.js";
import { approvalsOf } from "./turn.js";
import { TurnView } from "./turn-view.js";
import { html } from "./vendor-lit-html.js";

/**
 * @typedef {import("./app.js").App} App
 *
 * @typedef {object} Desk what the page keeps of an agent while others are shown
 * @property {Conversation} conversation
 * @property {SessionList} sessions
 * @property {Map<string, TurnView>} views by the key of their turns
 * @property {number | null} scroll distance from the top, or null at the end
 * @property {string} listed what the list of sessions has to show; it is read again when this changes
 */

const NEW = "new";
const NEAR_END = 40; // pixels
const CONTINUE = "Continue: what waited has been decided.";

/**
 * @param {App} app
 * @returns {import("./app.js").View}
 */
export function createChat(app) {
  /** @type {Map<string, Desk>} */
  const desks = new Map();
  let current = "";
  /** @type {any | null} the session that the user wants to delete */
  let deleting = null;
  const agents = new Resource(
    async () => (await app.client.call("a1/agents")).agents,
    (error) => (app.refused(error), current ? show([current]) : show(waiting), app.changed()),
  );
  /** @type {string[]} */
  let waiting = [];
  void agents.load();

  /** @param {string[]} params */
  function show(params) {
    waiting = params;
    if (!agents.value) return;
    const remembered = app.store.get("agent");
    const name = params[0] ?? (agents.value.some((/** @type {any} */ one) => one.name === remembered) ? remembered : agents.value[0]?.name);
    if (!name) return;
    saveScroll();
    current = name;
    app.store.set("agent", name);
    const sessionId = params[1] === NEW ? null : (params[1] ?? app.store.get(`open:${name}`));
    const desk = desks.get(name);
    if (desk && desk.conversation.sessionId === sessionId) return;
    if (desk && params[1] === undefined) return;
    desk?.conversation.close();
    openDesk(name, sessionId, desk?.sessions);
  }

  /**
   * @param {string} name
   * @param {string | null} sessionId
   * @param {SessionList} [sessions]
   */
  function openDesk(name, sessionId, sessions = new SessionList(app, name)) {
    app.store.set(`open:${name}`, sessionId);
    const listed = agents.value?.find((/** @type {any} */ one) => one.name === name) ?? { name, description: "", workspace: null };
    const conversation = new Conversation(app, listed, sessionId);
    desks.set(name, { conversation, sessions, views: new Map(), scroll: null, listed: `${sessionId} false` });
    app.changed();
  }

  function saveScroll() {
    const log = document.getElementById("log");
    const desk = desks.get(current);
    if (log && desk) desk.scroll = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END ? null : log.scrollTop;
  }

  /** Put the log where it was, or keep it at its end. */
  function restoreScroll() {
    const log = document.getElementById("log");
    const desk = desks.get(current);
    if (log && desk) log.scrollTop = desk.scroll ?? log.scrollHeight;
  }

  /** @param {any} session */
  async function remove(session) {
    deleting = null;
    const desk = desks.get(current);
    try {
      await app.client.call(`a1/agents/${encodeURIComponent(session.agent)}/sessions/${session.id}`, { method: "DELETE" });
      if (desk?.conversation.sessionId === session.id) app.go(fragment("chat", current, NEW));
    } catch (error) {
      if (desk && !app.refused(error)) desk.conversation.error = error;
    }
    desk?.sessions.reload();
    app.changed();
  }

  /** @param {KeyboardEvent} event */
  function press(event) {
    if (event.key === "Escape") void desks.get(current)?.conversation.stop();
  }

  /** Show what was decided elsewhere. */
  function refreshApprovals() {
    if (!document.hidden) void desks.get(current)?.conversation.refreshApprovals();
  }

  /** @param {Desk} desk */
  function log(desk) {
    const { conversation } = desk;
    const turns = [...conversation.turns, ...(conversation.live ? [conversation.live] : [])];
    const keys = new Set(turns.map((turn) => turn.key));
    for (const key of desk.views.keys()) if (!keys.has(key)) desk.views.delete(key);
    const context = {
      app,
      approvals: conversation.approvals,
      decided: (/** @type {any} */ approval) => {
        conversation.keepApproval(approval);
        app.changed();
      },
    };
    const revision = [...conversation.approvals.values()].map(({ status }) => status).join();
    return turns.map((turn) => {
      let view = desk.views.get(turn.key);
      if (!view) desk.views.set(turn.key, (view = new TurnView()));
      view.update(turn, context, revision);
      return view.element;
    });
  }

  /** @param {Conversation} conversation */
  function offerToContinue(conversation) {
    const last = conversation.turns.at(-1);
    const ids = last && !conversation.busy ? approvalsOf(last) : [];
    const decided = ids.length > 0 && ids.every((id) => (conversation.approvals.get(id)?.status ?? "pending") !== "pending");
    return decided
      ? html`<p class="state">Everything that waited is decided. <button type="button" @click=${() => conversation.send(CONTINUE)}>Tell the agent to continue</button></p>`
      : "";
  }

  /** @param {Desk} desk */
  function conversationView(desk) {
    const { conversation } = desk;
    const { session, stream } = conversation;
    follow(desk);
    const costs = conversation.turns.flatMap((turn) => turn.cost ?? []);
    requestAnimationFrame(restoreScroll);
    return html`<section class="conversation" aria-label="Conversation">
      <header>
        <h1><bdi>${conversation.agent.name}</bdi></h1>
        <p class="quiet">${conversation.agent.description}</p>
        <p class="quiet">${session?.title ?? ""} ${session?.workspace ? html`· workspace <a href=${fragment("workspaces", session.workspace)}>${session.workspace}</a>` : ""}
          ${costs.length ? html`· session ${money(sum(costs))}` : ""}
          ${session?.parent_session_id ? html`· <a href=${fragment("chat", current, session.parent_session_id)}>earlier part</a>` : ""}
          ${session?.successor_session_id ? html`· archived; <a href=${fragment("chat", current, session.successor_session_id)}>continued here</a>` : ""}</p>
      </header>
      <div id="log" tabindex="0" aria-label="Messages" @scroll=${saveScroll}>
        ${conversation.loading && !conversation.turns.length ? html`<p class="state" role="status">Loading …</p>` : ""} ${log(desk)}
        ${!conversation.turns.length && !conversation.live && !conversation.loading ? html`<p class="quiet">Write a message to begin.</p>` : ""}
      </div>
      ${stream?.status === "reconnecting" ? html`<p class="state reconnecting" role="status">The connection broke off. Reconnecting … The agent goes on meanwhile.</p>` : ""}
      ${conversation.error ? failure(conversation.error, conversation.draft.returned ? null : () => conversation.reload()) : ""} ${offerToContinue(conversation)}
      ${session?.archived_at ? "" : composer(conversation, app.changed)}
    </section>`;
  }

  /**
   * Let the address and the list of sessions follow the conversation, whose first message creates a session.
   * @param {Desk} desk
   */
  function follow(desk) {
    const { sessionId, busy } = desk.conversation;
    const address = sessionId ? fragment("chat", current, sessionId) : null;
    if (address && location.hash !== address) history.replaceState(null, "", address);
    const listed = `${sessionId} ${busy}`;
    if (listed !== desk.listed) desk.sessions.reload();
    desk.listed = listed;
  }

  /** @param {any[]} list */
  function picker(list) {
    const desk = desks.get(current);
    return html`<aside class="side">
      <label>Agent
        <select @change=${(/** @type {Event} */ event) => app.go(fragment("chat", /** @type {HTMLSelectElement} */ (event.target).value))}>
          ${list.map((agent) => html`<option value=${agent.name} ?selected=${agent.name === current}>${agent.name}${desks.get(agent.name)?.conversation.busy ? " (answering)" : ""}</option>`)}
        </select>
      </label>
      ${desk?.conversation.agent.operator_id ? "" : html`<a class="button" href=${fragment("chat", current, NEW)}>New session</a>`}
      ${desk?.sessions.render(desk.conversation.sessionId, (session) => ((deleting = session), app.changed()))}
      ${deleting
        ? html`<div class="state" role="alertdialog" aria-label="Delete a session">
            <p>Delete “<bdi>${deleting.title ?? deleting.id}</bdi>” with all its messages?</p>
            <button type="button" @click=${() => remove(deleting)}>Delete it</button> <button type="button" @click=${() => ((deleting = null), app.changed())}>Keep it</button>
          </div>`
        : ""}
    </aside>`;
  }

  return {
    open(params) {
      addEventListener("keydown", press);
      document.addEventListener("visibilitychange", refreshApprovals);
      show(params);
      refreshApprovals();
    },
    close() {
      removeEventListener("keydown", press);
      document.removeEventListener("visibilitychange", refreshApprovals);
      saveScroll();
    },
    render: () => agents.show((list) => html`${picker(list)} ${desks.has(current) ? conversationView(/** @type {Desk} */ (desks.get(current))) : ""}`, {
      empty: (list) => (list.length ? null : html`<p class="state">This gateway has no agents. Your operator adds them as YAML files.</p>`),
    }),
  };
}
