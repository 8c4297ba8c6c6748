/** Modal dialogs. The browser keeps the focus inside, closes them on Esc, and puts the focus back. */

import { html, render } from "lit-html";

/**
 * Show a dialog until the user closes it. Resolve to true if the user chose `action`.
 * @param {string} title
 * @param {import("./resource.js").Content} content
 * @param {{action?: string, refusal: string}} buttons
 * @returns {Promise<boolean>}
 */
export function showDialog(title, content, { action, refusal }) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "dialog-title");
  render(
    html`<h2 id="dialog-title">${title}</h2>
      ${content}
      <div class="buttons">
        <button type="button" autofocus @click=${() => dialog.close()}>${refusal}</button>
        ${action ? html`<button type="button" class="primary" @click=${() => dialog.close("yes")}>${action}</button>` : ""}
      </div>`,
    dialog,
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}

/** Close every dialog, as after signing out. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}
