/** The field in which a user writes a message. Enter sends, and on a touch screen breaks a line; Shift+Enter breaks a line, Esc stops the answer. */

import { touch } from "./touch.js";
import { html } from "lit-html";

const MAX_BYTES = 256 * 1024;
const ENCODER = new TextEncoder();

/**
 * @param {import("./conversation.js").Conversation} conversation
 * @param {() => void} changed
 * @param {() => void} sent is called before a message is sent
 * @returns {import("./resource.js").Content}
 */
export function composer(conversation, changed, sent) {
  const { draft, busy, stopping } = conversation;
  const tooLong = draft.text.length > MAX_BYTES / 4 && ENCODER.encode(draft.text).length > MAX_BYTES;
  const send = () => {
    if (tooLong) return;
    sent();
    void conversation.send(draft.text);
    showDraft(draft);
  };
  /** @param {KeyboardEvent} event */
  const press = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touch.matches) {
      event.preventDefault();
      send();
    }
  };
  return html`<form class="composer" @submit=${(/** @type {Event} */ event) => (event.preventDefault(), send())}>
    ${tooLong ? html`<p class="state failed" role="alert">A message may have 256 KB. Shorten it, or put the text into a workspace or an index.</p>` : ""}
    <label class="unseen" for="message">Message</label>
    <textarea id="message" rows=${touch.matches ? 1 : 3} placeholder="Write a message" aria-describedby="keys" @keydown=${press}
      @input=${(/** @type {Event} */ event) => (draft.write(/** @type {HTMLTextAreaElement} */ (event.target).value), changed())}></textarea>
    <div class="buttons">
      <span id="keys" class="hint">${touch.matches ? html`<kbd>Enter</kbd> breaks a line` : html`<kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> breaks a line, <kbd>Esc</kbd> stops`}</span>
      ${busy
        ? html`<button type="button" class="stop" ?disabled=${stopping} @click=${() => conversation.stop()}>${stopping ? "Stopping …" : "Stop"}</button>`
        : html`<button class="primary" ?disabled=${tooLong || !draft.text.trim()}>Send</button>`}
    </div>
  </form>`;
}

/**
 * Put a draft into the field. A template would compare it with the text that it rendered last, not with what is in the field: what was typed
 * since then would stay there, under another agent.
 * @param {import("./draft.js").Draft} draft
 */
export function showDraft({ text }) {
  const field = /** @type {HTMLTextAreaElement | null} */ (document.getElementById("message"));
  if (field && field.value !== text) field.value = text;
}
