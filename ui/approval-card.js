/** A call that waits for the user's decision. */

import { html } from "./vendor-lit-html.js";

/**
 * @param {import("./app.js").App} _app
 * @param {any} approval as `GET /a1/approvals/{id}` answers
 * @param {(approval: any) => void} _decided is called with the approval after a decision
 * @returns {import("./resource.js").Content}
 */
export function approvalCard(_app, approval, _decided) {
  return html`<p>${approval.status}</p>`;
}
