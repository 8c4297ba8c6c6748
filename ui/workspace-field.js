/** The choice of a workspace for a session that the next message creates. */

import { html } from "lit-html";

/** @typedef {import("./conversation.js").Conversation} Conversation */

/** @type {WeakMap<Conversation, string[]>} the ids of the tenant's workspaces, as far as they have been read */
const offered = new WeakMap();

/**
 * Return the field, or nothing if the session exists or its agent has no workspace.
 * @param {import("./app.js").App} app
 * @param {Conversation} conversation
 * @returns {import("./resource.js").Content}
 */
export function workspaceField(app, conversation) {
  const { agent, sessionId, busy } = conversation;
  const kept = `workspace:${agent.name}`; // over a reload, until the session exists
  if (sessionId) {
    if (offered.delete(conversation)) app.store.set(kept, null);
    return "";
  }
  if (busy || !agent.workspace) return "";
  let ids = offered.get(conversation);
  if (!ids) {
    offered.set(conversation, (ids = []));
    conversation.workspace = app.store.get(kept);
    void read(app, ids);
  }
  const { workspace } = conversation;
  const choose = (/** @type {Event} */ event) => {
    conversation.workspace = /** @type {HTMLSelectElement} */ (event.target).value || null;
    app.store.set(kept, conversation.workspace);
    app.changed();
  };
  const others = [...new Set([...(workspace ? [workspace] : []), ...ids])].filter((id) => id !== agent.workspace);
  return html`<p class="new-workspace"><label>Workspace
    <select @change=${choose}>
      <option value="" ?selected=${!workspace}>${agent.workspace} (the agent's own)</option>
      ${others.map((id) => html`<option value=${id} ?selected=${id === workspace}>${id}</option>`)}
    </select></label></p>`;
}

/**
 * Add the ids of the tenant's workspaces. Without an answer the agent's own is offered alone.
 * @param {import("./app.js").App} app
 * @param {string[]} ids
 */
async function read(app, ids) {
  try {
    for await (const page of app.client.pages("a1/workspaces?limit=1000")) ids.push(...page.workspaces.map((/** @type {any} */ one) => one.id));
  } catch (error) {
    app.refused(error);
  }
  app.changed();
}
