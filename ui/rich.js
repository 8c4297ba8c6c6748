/** Blocks that tools make for people: diffs, file trees and files. */

import { html } from "./vendor-lit-html.js";

/**
 * @param {any} block as docs/workspaces.md lists them
 * @returns {import("./resource.js").Content}
 */
export function richBlock(block) {
  return html`<pre>${JSON.stringify(block, null, 2)}</pre>`;
}
