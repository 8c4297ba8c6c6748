/** The chat view: an agent picker, the agent's sessions, and the open conversation. */

import "./shared.js";
import { showDraft } from "./composer.js";
import { Conversation } from "./conversation.js";
import { conversationView } from "./conversation-view.js";
import { showDialog } from "./dialog.js";
import { Draft } from "./draft.js";
import { Log } from "./log.js";
import { Resource } from "./resource.js";
import { fragment } from "./router.js";
import { SessionList, sessionName } from "./sessions.js";
import { touch } from "./touch.js";
import { html } from "lit-html";
import { workspaceField } from "./workspace-field.js";

/**
 * @typedef {import("./app.js").App} App
 *
 * @typedef {object} Open a conversation and how it is shown
 * @property {Conversation} conversation
 * @property {Log} log
 *
 * @typedef {object} Desk what the page keeps of an agent while others are shown
 * @property {Draft} draft
 * @property {Open} open
 * @property {Open[]} answering other sessions of the agent in which a turn runs
 * @property {SessionList} sessions
 * @property {string} listed what the list of sessions has to show; it is read again when this changes
 */

const NEW = "new";
const REFRESH = 15_000; // ms between two looks at whether another tab or device has changed the session

/**
 * @param {App} app
 * @returns {import("./app.js").View}
 */
export function createChat(app) {
  /** @type {Map<string, Desk>} */
  const desks = new Map();
  let current = "";
  /** @type {string[]} */
  let wanted = [];
  let seen = ""; // the address that `wanted` is of: another one is on its way to `open`
  let isListOpen = false;
  let wantsFocus = true;
  /** @type {number | undefined} */
  let timer;
  const agents = new Resource(
    async () => (await app.client.call("a1/agents")).agents,
    (error) => (app.refused(error), show(), app.changed()),
  );
  void agents.load();

  /** Show what the address names, if the agents are known. */
  function show() {
    if (!agents.value) return;
    const remembered = app.store.get("agent");
    const usable = agents.value.filter(isUsable);
    const name = wanted[0] ?? (usable.find((/** @type {any} */ one) => one.name === remembered) ?? usable[0] ?? agents.value[0])?.name;
    if (!name) return;
    const desk = desks.get(name) ?? openDesk(name);
    const sessionId = wanted[1] === NEW ? null : (wanted[1] ?? desk.open.conversation.sessionId);
    if (current !== name || desk.open.conversation.sessionId !== sessionId) desks.get(current)?.open.log.saveScroll();
    current = name;
    app.store.set("agent", name);
    if (desk.open.conversation.sessionId !== sessionId) openSession(name, desk, sessionId);
  }

  /** @param {string} name */
  function openDesk(name) {
    const draft = new Draft(app, name);
    const sessionId = (wanted[1] === NEW ? null : wanted[1]) ?? app.store.get(`open:${name}`);
    const desk = { draft, open: start(name, draft, sessionId), answering: [], sessions: new SessionList(app, name), listed: `${sessionId} false` };
    desks.set(name, desk);
    return desk;
  }

  /**
   * @param {string} name
   * @param {Draft} draft
   * @param {string | null} sessionId
   * @returns {Open}
   */
  function start(name, draft, sessionId) {
    const agent = agents.value?.find((/** @type {any} */ one) => one.name === name) ?? { name, description: "" };
    const changed = () => (follow(name), app.changed());
    const conversation = new Conversation({ ...app, changed }, agent, sessionId, draft);
    return { conversation, log: new Log(app, conversation) };
  }

  /**
   * Show another session. One that is being answered is read on, so that a message on its way arrives.
   * @param {string} name
   * @param {Desk} desk
   * @param {string | null} sessionId
   */
  function openSession(name, desk, sessionId) {
    const { open } = desk;
    const others = [...desk.answering, open];
    const answering = others.find(({ conversation }) => conversation.busy && conversation.sessionId === sessionId);
    for (const { conversation } of others) if (!conversation.busy) conversation.close();
    desk.answering = others.filter((one) => one !== answering && one.conversation.busy);
    desk.open = answering ?? start(name, desk.draft, sessionId);
    follow(name);
    isListOpen = false;
    wantsFocus = true;
  }

  /** @param {any} session */
  async function remove(session) {
    const isSure = await showDialog("Delete a session", html`<p>Delete “<bdi>${sessionName(session)}</bdi>” with all its messages?</p>`, {
      action: "Delete it",
      refusal: "Keep it",
    });
    const desk = desks.get(current);
    if (!isSure || !desk || app.client.closed) return;
    try {
      await app.client.call(`a1/agents/${encodeURIComponent(session.agent)}/sessions/${encodeURIComponent(session.id)}`, { method: "DELETE" });
      if (desk.open.conversation.sessionId === session.id) app.go(fragment("chat", current, NEW));
      wantsFocus = true;
    } catch (error) {
      if (!app.refused(error)) desk.open.conversation.error = error;
    }
    desk.sessions.reload();
    app.changed();
  }

  /** @param {KeyboardEvent} event */
  function press(event) {
    if (event.key === "Escape" && !document.querySelector("dialog")) void desks.get(current)?.open.conversation.stop();
  }

  function refresh() {
    if (!document.hidden) desks.get(current)?.open.conversation.refresh();
  }

  /**
   * Let what is stored, the address and the list of sessions follow the conversation, whose first message creates a session. This
   * does not wait for a frame: a hidden tab has none, and a reload must find the session.
   * @param {string} name of the agent
   */
  function follow(name) {
    const desk = desks.get(name);
    if (!desk || app.client.closed) return;
    const { sessionId, busy } = desk.open.conversation;
    app.store.set(`open:${name}`, sessionId);
    if (timer && name === current && sessionId && location.hash === seen) {
      seen = fragment("chat", name, sessionId);
      if (location.hash !== seen) history.replaceState(null, "", seen);
      wanted = [name, sessionId];
    }
    const listed = `${sessionId} ${busy}`;
    if (listed !== desk.listed) desk.sessions.reload();
    desk.listed = listed;
  }

  /** After the rendering, before the browser paints. */
  function settle() {
    const chooses = document.activeElement instanceof HTMLSelectElement;
    const desk = desks.get(current);
    if (desk) showDraft(desk.draft);
    desk?.open.log.restoreScroll();
    // On a touch screen the field would open the keyboard over the messages.
    const target = touch.matches ? null : document.getElementById("message");
    if (wantsFocus && !chooses && !document.querySelector("dialog")) (target ?? document.getElementById("log"))?.focus();
    if (document.getElementById("log")) wantsFocus = false;
  }

  /** @param {any[]} list */
  function picker(list) {
    const desk = desks.get(current);
    const [usable, others] = [list.filter(isUsable), list.filter((one) => !isUsable(one))];
    const isListed = list.some(({ name }) => name === current);
    return html`<aside class="side" aria-label="Agent and sessions">
      <div class="picker">
        <label for="agent">Agent</label>
        <select id="agent" .value=${current} @change=${(/** @type {Event} */ event) => app.go(fragment("chat", /** @type {HTMLSelectElement} */ (event.target).value))}>
          ${isListed ? "" : html`<option value=${current} selected>${current} (gone)</option>`}
          ${usable.map(({ name }) => html`<option value=${name} ?selected=${name === current}>${name}${desks.get(name)?.open.conversation.busy ? " (answering)" : ""}</option>`)}
          ${others.length
            ? html`<optgroup label="Not for you">
                ${others.map(({ name, unusable_reason: reason }) => html`<option value=${name} ?selected=${name === current} disabled title=${reason ?? ""}>${name}</option>`)}
              </optgroup>`
            : ""}
        </select>
      </div>
      <div class="buttons">
        ${desk?.open.conversation.agent.operator_id ? "" : html`<a class="button" href=${fragment("chat", current, NEW)}>New session</a>`}
        <button type="button" class="disclosure" aria-expanded=${isListOpen} aria-controls="sessions"
          @click=${() => ((isListOpen = !isListOpen), app.changed())}>Sessions</button>
      </div>
      <nav id="sessions" class=${isListOpen ? "shown" : ""} aria-label="Sessions">${desk?.sessions.render(desk.open.conversation.sessionId, remove, Boolean(desk.open.conversation.record.error ?? desk.open.conversation.error))}</nav>
    </aside>`;
  }

  return {
    open(params) {
      wanted = params;
      seen = location.hash;
      if (!timer) {
        addEventListener("keydown", press);
        addEventListener("focus", refresh);
        document.addEventListener("visibilitychange", refresh);
        timer = setInterval(refresh, REFRESH);
      }
      show();
      refresh();
    },
    close() {
      removeEventListener("keydown", press);
      removeEventListener("focus", refresh);
      document.removeEventListener("visibilitychange", refresh);
      clearInterval(timer);
      timer = undefined;
      desks.get(current)?.open.log.saveScroll();
    },
    render() {
      const desk = desks.get(current);
      if (desk) follow(current);
      queueMicrotask(settle);
      return agents.show((list) => html`${picker(list)} ${desk ? conversationView(desk.open.conversation, desk.open.log, app.changed, workspaceField(app, desk.open.conversation)) : ""}`, {
        empty: (list) => (list.length ? null : html`<p class="state">This gateway has no agents. Your operator adds them as YAML files.</p>`),
      });
    },
  };
}

/**
 * Return true unless the gateway says that every message to this agent would be refused.
 * @param {any} agent
 */
function isUsable(agent) {
  return agent.usable !== false;
}
