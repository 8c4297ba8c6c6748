/** The uploads of an index as the gateway knows them. Those that are not over are polled. */

import { announce } from "./announce.js";
import { ApiError } from "./errors.js";
import { count, number, size } from "./format.js";
import { Pages } from "./pages.js";
import { failure, RETRIES } from "./resource.js";
import { html, render } from "lit-html";

/**
 * @typedef {{line: number | null, code: string, message: string}} LineError
 *
 * @typedef {object} Upload
 * @property {string} id
 * @property {string} filename
 * @property {"waiting" | "queued" | "running" | "succeeded" | "failed"} status
 * @property {number} bytes_done
 * @property {number} bytes_total
 * @property {number} documents_ingested
 * @property {number} documents_failed
 * @property {LineError[]} errors
 *
 * @typedef {object} Row what the page keeps of an upload
 * @property {HTMLElement} element
 * @property {boolean} open the errors are shown
 * @property {number} shown how many of them
 * @property {number} polls how often a file that may never arrive was asked for
 * @property {boolean} mine this page has sent the file
 * @property {boolean} stopped the gateway refused to tell its state; a refresh asks again
 */

const POLL_MS = 2000;
const MAX_DELAY_MS = 30_000;
const ANSWER_MS = 30_000; // the gateway answers within 29 seconds
const MAX_WAITING_POLLS = 60; // of a file that this page has not sent: most of those never arrive
const MAX_POLLED = 10;
const FIRST_ERRORS = 5;
const ERRORS_STEP = 200;

/** @type {Record<string, string>} */
const STATUS = {
  waiting: "waits for a worker, or the file has not arrived",
  queued: "waits for a worker to continue",
  running: "is ingested",
  succeeded: "succeeded",
  failed: "failed",
};

export class Uploads {
  #app;
  #path;
  #progressed;
  #holds;
  /** @type {Pages<Upload>} */
  #list;
  /** @type {Map<string, Row>} */
  #rows = new Map();
  /** @type {number | undefined} */
  #timer;
  /** @type {unknown} */
  #error = null;
  #failures = 0;
  #isPolling = false;
  #isOpen = false;
  #wake = () => this.#schedule(0);

  /**
   * @param {import("./app.js").App} app
   * @param {string} path of the index's uploads
   * @param {(uploadId: string) => boolean} holds returns true while the page still sends the file
   * @param {() => void} progressed is called when the first documents of a file are in the index, and when the upload is over
   */
  constructor(app, path, holds, progressed) {
    this.#app = app;
    this.#path = path;
    this.#holds = holds;
    this.#progressed = progressed;
    this.#list = new Pages(app, `${path}?limit=20`, "uploads", () => this.#schedule(POLL_MS));
  }

  open() {
    this.#isOpen = true;
    this.#error = null;
    for (const row of this.#rows.values()) row.stopped = false;
    document.addEventListener("visibilitychange", this.#wake);
    void this.#list.load();
    this.#schedule(POLL_MS);
  }

  close() {
    this.#isOpen = false;
    document.removeEventListener("visibilitychange", this.#wake);
    clearTimeout(this.#timer);
    this.#list.close();
  }

  /**
   * Follow the upload of a file that has been sent.
   * @param {string} id
   * @param {File} file
   */
  follow(id, file) {
    this.#row(id).mine = true;
    if (!this.#list.entries.some((upload) => upload.id === id)) {
      const counts = { bytes_done: 0, bytes_total: file.size, documents_ingested: 0, documents_failed: 0 };
      this.#list.entries.unshift({ id, filename: file.name, status: "waiting", ...counts, errors: [] });
    }
    this.#schedule(POLL_MS);
  }

  render() {
    return html`${this.#error ? failure(this.#error, null, RETRIES) : ""}${this.#list.show(
      (uploads) => html`<ul class="uploads" aria-label="Uploads">
        ${uploads.filter(({ id }) => !this.#holds(id)).map((upload) => this.#item(upload))}
      </ul>`,
      html`<p class="quiet">No files have been uploaded in the last 90 days.</p>`,
    )}`;
  }

  /** @param {string} id */
  #row(id) {
    let row = this.#rows.get(id);
    if (!row) this.#rows.set(id, (row = { element: document.createElement("li"), open: false, shown: ERRORS_STEP, polls: 0, mine: false, stopped: false }));
    return row;
  }

  /** @param {Upload} upload */
  #item(upload) {
    const row = this.#row(upload.id);
    const isOver = upload.status === "succeeded" || upload.status === "failed";
    const failed = upload.documents_failed ? `, ${number(upload.documents_failed)} failed` : "";
    const bytes = isOver ? size(upload.bytes_total) : `${size(upload.bytes_done)} of ${size(upload.bytes_total)}`;
    render(
      html`<p>
          <bdi><strong>${upload.filename}</strong></bdi>
          <span class=${`badge ${upload.status}`}>${upload.status === "waiting" && row.mine ? "waits for a worker" : (STATUS[upload.status] ?? upload.status)}</span>
          <span class="quiet">${count(upload.documents_ingested, "document")} ingested${failed} · ${bytes}</span>
        </p>
        ${isOver ? "" : html`<progress aria-label=${`Ingested of ${upload.filename}`} max=${Math.max(upload.bytes_total, 1)} .value=${upload.bytes_done}></progress>`}
        ${upload.errors.length ? this.#errors(upload, row) : ""}`,
      row.element,
    );
    return row.element;
  }

  /**
   * @param {Upload} upload
   * @param {Row} row
   */
  #errors({ errors, documents_failed: failed }, row) {
    const rest = errors.slice(FIRST_ERRORS);
    /** @param {Event} event */
    const toggle = (event) => {
      row.open = /** @type {HTMLDetailsElement} */ (event.currentTarget).open;
      this.#app.changed();
    };
    const more = () => ((row.shown += ERRORS_STEP), this.#app.changed());
    return html`<div class="errors">
      ${lines(errors.slice(0, FIRST_ERRORS))}
      ${
        rest.length
          ? html`<details @toggle=${toggle}>
              <summary>${count(rest.length, "more error")}</summary>
              ${row.open ? lines(rest.slice(0, row.shown)) : ""}
              ${row.open && rest.length > row.shown ? html`<button type="button" @click=${more}>Show ${Math.min(ERRORS_STEP, rest.length - row.shown)} more</button>` : ""}
            </details>`
          : ""
      }
      ${failed > errors.length ? html`<p class="quiet">The gateway keeps the first ${number(errors.length)} of ${number(failed)} errors.</p>` : ""}
    </div>`;
  }

  /** @returns {Upload[]} */
  #polled() {
    const active = this.#list.entries.filter(({ id, status }) => {
      if (status === "succeeded" || status === "failed" || this.#holds(id)) return false;
      const row = this.#row(id);
      return !row.stopped && (status !== "waiting" || row.mine || row.polls < MAX_WAITING_POLLS);
    });
    return active.slice(0, MAX_POLLED);
  }

  /** @param {number} delay in milliseconds */
  #schedule(delay) {
    clearTimeout(this.#timer);
    if (this.#isOpen && !document.hidden && this.#polled().length) this.#timer = setTimeout(() => this.#poll(), delay);
  }

  async #poll() {
    if (this.#isPolling) return;
    this.#isPolling = true;
    for (const upload of this.#polled()) {
      if (!this.#isOpen) break;
      try {
        this.#update(upload, await this.#app.client.call(`${this.#path}/${encodeURIComponent(upload.id)}`, { signal: AbortSignal.timeout(ANSWER_MS) }));
        this.#error = null;
        this.#failures = 0;
      } catch (error) {
        if (this.#app.refused(error)) break;
        this.#error = error;
        if (error instanceof ApiError && error.passes) this.#failures++;
        else this.#row(upload.id).stopped = true;
        break;
      }
    }
    this.#isPolling = false;
    this.#app.changed();
    this.#schedule(Math.min(POLL_MS * 2 ** this.#failures, MAX_DELAY_MS));
  }

  /**
   * @param {Upload} upload
   * @param {Upload} state
   */
  #update(upload, state) {
    this.#row(upload.id).polls++;
    const isFirst = upload.documents_ingested === 0 && state.documents_ingested > 0;
    Object.assign(upload, state);
    const isOver = state.status === "succeeded" || state.status === "failed";
    if (isOver) announce(`${upload.filename}: ${STATUS[state.status]}, ${count(upload.documents_ingested, "document")} ingested.`);
    if (isFirst || isOver) this.#progressed();
  }
}

/** @param {LineError[]} errors */
function lines(errors) {
  return html`<ul>
    ${errors.map(({ line, code, message }) => html`<li>${line === null ? "The file" : `Line ${number(line)}`}: <bdi>${message}</bdi> <code>${code}</code></li>`)}
  </ul>`;
}
