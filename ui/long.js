/** Content that is rendered only when the user asks for it. */

import { html, render } from "lit-html";

/**
 * Return a summary that opens to `content`, which is called when it is opened.
 * @param {import("./resource.js").Content} summary
 * @param {() => import("./resource.js").Content | import("./resource.js").Content[]} content
 */
export function long(summary, content) {
  /** @param {Event} event */
  function toggle(event) {
    const element = /** @type {HTMLDetailsElement} */ (event.currentTarget);
    const place = /** @type {HTMLElement} */ (element.lastElementChild);
    if (element.open) render(html`${content()}`, place);
  }
  return html`<details @toggle=${toggle}><summary>${summary}</summary><div></div></details>`;
}
