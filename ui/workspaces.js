import { html } from "./vendor-lit-html.js";

/**
 * @param {import("./app.js").App} _app
 * @returns {import("./app.js").View}
 */
export function createWorkspaces(_app) {
  return { open() {}, close() {}, render: () => html`<h1>Workspaces</h1>` };
}
