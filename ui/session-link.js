/** Links from an approval or a version to the session in which it came about. */

import { ApiError } from "./errors.js";
import { fragment } from "./router.js";
import { html } from "lit-html";

/**
 * Return a link to a session. A delegate works in the session of the agent that asked it, so that one is looked for when the link is used.
 * @param {import("./app.js").App} app
 * @param {string} agent
 * @param {string} sessionId
 * @param {string} label
 */
export function sessionLink(app, agent, sessionId, label) {
  const address = fragment("chat", agent, sessionId);
  /** @param {MouseEvent} event */
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    void owner(app, agent, sessionId).then((name) => app.go(fragment("chat", name, sessionId)), app.refused);
  };
  return html`<a href=${address} @click=${follow}>${label}</a>`;
}

/**
 * Return the agent that has a session: `agent`, one that delegates to it, or, if there is none, `agent`.
 * @param {import("./app.js").App} app
 * @param {string} agent
 * @param {string} sessionId
 */
async function owner(app, agent, sessionId) {
  const { agents } = await app.client.call("a1/agents");
  const others = agents.filter((/** @type {any} */ one) => one.tools.includes("delegate")).map((/** @type {any} */ one) => one.name);
  for (const name of [agent, ...others.filter((/** @type {string} */ one) => one !== agent)]) {
    try {
      await app.client.call(`a1/agents/${encodeURIComponent(name)}/sessions/${encodeURIComponent(sessionId)}`);
      return name;
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    }
  }
  return agent;
}
