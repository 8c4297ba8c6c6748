/** The keys of the page. `?` shows them. */

import { showDialog } from "./dialog.js";
import { html } from "lit-html";

/** @type {[string[], string][]} */
const KEYS = [
  [["Enter"], "sends the message; on a touch screen it breaks a line"],
  [["Shift", "Enter"], "breaks a line"],
  [["Esc"], "stops the answer, or closes a dialog"],
  [["Tab"], "goes to the next link, button or field"],
  [["Space"], "opens and closes arguments, results and folders"],
  [["?"], "shows these keys, when no field has the focus"],
];

/** Show the keys. */
export function showHelp() {
  void showDialog(
    "Keys",
    html`<table>
      <thead><tr><th scope="col">Key</th><th scope="col">What it does</th></tr></thead>
      <tbody>${KEYS.map(([keys, does]) => html`<tr><td>${keys.map((key, index) => html`${index ? "+" : ""}<kbd>${key}</kbd>`)}</td><td>${does}</td></tr>`)}</tbody>
    </table>`,
    { refusal: "Close" },
  );
}

/** @param {KeyboardEvent} event */
export function helpOnKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "?" && !target.closest("input, textarea, select, dialog")) showHelp();
}
