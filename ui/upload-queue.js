/** The files that the user has chosen for an index. They are sent one after another. */

import { ApiError } from "./errors.js";
import { size } from "./format.js";
import { failure } from "./resource.js";
import { brokenRule, description, sendForm } from "./upload.js";
import { html } from "lit-html";

/**
 * @typedef {object} Sending
 * @property {File} file
 * @property {"waiting" | "sending" | "failed" | "cancelled"} state
 * @property {number} sent in bytes
 * @property {unknown} error
 * @property {string} key the idempotency key of the form: a repeated request gets the same form until it expires
 * @property {string | null} uploadId
 * @property {AbortController} abort
 */

const ANSWER_MS = 30_000; // the gateway answers within 29 seconds

export class UploadQueue {
  #app;
  #path;
  #arrived;
  /** @type {Sending[]} */
  #files = [];
  /** @type {{name: string, rule: string}[]} */
  #refused = [];
  #isRunning = false;

  /**
   * @param {import("./app.js").App} app
   * @param {string} path of the index's uploads
   * @param {(id: string, file: File) => void} arrived is called when the bucket has a file
   */
  constructor(app, path, arrived) {
    this.#app = app;
    this.#path = path;
    this.#arrived = arrived;
  }

  /**
   * Return true if the file of an upload is still here.
   * @param {string} uploadId
   */
  holds(uploadId) {
    return this.#files.some((file) => file.uploadId === uploadId);
  }

  /**
   * Queue files. Those that break a rule are refused, and nothing of them is sent.
   * @param {Iterable<File>} files
   */
  add(files) {
    this.#refused = [];
    for (const file of files) {
      const rule = brokenRule(file);
      if (rule) this.#refused.push({ name: file.name, rule });
      else this.#files.push({ file, state: "waiting", sent: 0, error: null, key: crypto.randomUUID(), uploadId: null, abort: new AbortController() });
    }
    this.#app.changed();
    void this.#run();
  }

  /** Stop sending. */
  cancelAll() {
    for (const sending of this.#files) this.#cancel(sending);
  }

  render() {
    return html`${
      this.#refused.length
        ? html`<div class="state failed" role="alert">
            <p><strong>Not sent:</strong></p>
            <ul>
              ${this.#refused.map(({ name, rule }) => html`<li><bdi>${name}</bdi>: ${rule}</li>`)}
            </ul>
          </div>`
        : ""
    }
    ${this.#files.length ? html`<ul class="uploads" aria-label="Files to send">${this.#files.map((sending) => this.#item(sending))}</ul>` : ""}`;
  }

  /** @param {Sending} sending */
  #item(sending) {
    const { file, state, sent } = sending;
    const bytes = size(file.size);
    const isActive = state === "waiting" || state === "sending";
    return html`<li>
      <p><bdi><strong>${file.name}</strong></bdi> <span class="quiet">${LABELS[state]}${state === "sending" ? `, ${size(sent)} of ${bytes}` : `, ${bytes}`}</span></p>
      ${state === "sending" ? html`<progress aria-label=${`Sent of ${file.name}`} max=${file.size} .value=${sent}></progress>` : ""}
      ${sending.error ? failure(sending.error) : ""}
      <p class="actions">
        <button type="button" aria-label=${isActive ? `Cancel ${file.name}` : `Send ${file.name} again`} @click=${() => (isActive ? this.#cancel(sending) : this.#retry(sending))}>
          ${isActive ? "Cancel" : "Send again"}
        </button>
        ${isActive ? "" : html`<button type="button" aria-label=${`Remove ${file.name}`} @click=${() => this.#remove(sending)}>Remove</button>`}
      </p>
    </li>`;
  }

  /** @param {Sending} sending */
  #cancel(sending) {
    if (sending.state !== "waiting" && sending.state !== "sending") return;
    sending.state = "cancelled";
    sending.abort.abort();
    this.#app.changed();
  }

  /** @param {Sending} sending */
  #retry(sending) {
    Object.assign(sending, { state: "waiting", sent: 0, error: null, abort: new AbortController() });
    this.#app.changed();
    void this.#run();
  }

  /** @param {Sending} sending */
  #remove(sending) {
    this.#files = this.#files.filter((one) => one !== sending);
    this.#app.changed();
  }

  async #run() {
    if (this.#isRunning) return;
    this.#isRunning = true;
    for (let next; (next = this.#files.find(({ state }) => state === "waiting")); ) {
      await this.#send(next);
      this.#app.changed();
    }
    this.#isRunning = false;
  }

  /** @param {Sending} sending */
  async #send(sending) {
    const { file, abort } = sending;
    sending.state = "sending";
    this.#app.changed();
    try {
      if (!(await this.#hasArrived(sending))) {
        const headers = { "Idempotency-Key": sending.key };
        const signal = AbortSignal.any([abort.signal, AbortSignal.timeout(ANSWER_MS)]);
        const form = await this.#app.client.call(this.#path, { method: "POST", json: description(file), headers, signal });
        sending.uploadId = String(form.upload_id);
        await sendForm(form, file, (sent) => ((sending.sent = sent), this.#app.changed()), abort.signal);
      }
      this.#remove(sending);
      this.#arrived(String(sending.uploadId), file);
    } catch (error) {
      if (abort.signal.aborted) return; // and `#cancel` or `#retry` has set the state
      sending.state = "failed";
      const isBucket = error instanceof ApiError && error.code === "upload_refused"; // it knows no token, so its 401 does not sign the user out
      if (!isBucket && this.#app.refused(error)) return;
      sending.error = error;
      if (isBucket) sending.key = crypto.randomUUID(); // the next form is a new one
    }
  }

  /**
   * Return true if an earlier attempt has brought the file to the gateway, although its answer was lost.
   * @param {Sending} sending
   */
  async #hasArrived({ uploadId, abort }) {
    if (!uploadId) return false;
    const signal = AbortSignal.any([abort.signal, AbortSignal.timeout(ANSWER_MS)]);
    const upload = await this.#app.client.call(`${this.#path}/${encodeURIComponent(uploadId)}`, { signal });
    return upload.status !== "waiting";
  }
}

const LABELS = { waiting: "waits for its turn", sending: "is sent", failed: "was not sent", cancelled: "cancelled" };
