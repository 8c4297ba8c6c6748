/** Zips that go into a workspace and come out of it. */

import { save, wholeBody } from "./download.js";
import { ApiError } from "./errors.js";
import { count, number, size } from "./format.js";
import { failure } from "./resource.js";
import { html } from "lit-html";

const MAX_BYTES = 4 * 1024 * 1024;
const LOST = "The connection broke off, so it is not known whether the files arrived. Look at the versions before you send the zip again.";

/** @typedef {{version: number, added: number, changed: number, deleted: number}} Written */

/**
 * Say what a write has changed.
 * @param {Written} written
 */
export function changes({ added, changed, deleted }) {
  return `${count(added, "file")} added, ${number(changed)} changed, ${number(deleted)} deleted`;
}

/** The form that sends a zip to a workspace. */
export class ArchiveForm {
  /** @type {"merge" | "replace"} */
  #mode = "merge";
  /** @type {File | null} */
  #file = null;
  /** @type {string | null} why the chosen file cannot be sent */
  #refusal = null;
  /** @type {unknown} */
  #error = null;
  /** @type {string | null} */
  #note = null;
  #busy = false;
  #app;
  #sent;
  #choice = 0;
  /** @type {HTMLInputElement | null} */
  #input = null;

  /**
   * @param {import("./app.js").App} app
   * @param {() => Promise<void>} sent reads the newest version, when a zip has been sent or may have arrived
   */
  constructor(app, sent) {
    this.#app = app;
    this.#sent = sent;
  }

  /** True if a zip is chosen that can be sent. */
  get isReady() {
    return this.#file !== null && this.#refusal === null && !this.#busy;
  }

  get busy() {
    return this.#busy;
  }

  /**
   * Send the chosen zip.
   * @param {string} workspace
   * @returns {Promise<boolean>} true if the gateway has taken it
   */
  async send(workspace) {
    if (!this.isReady) return false;
    this.#busy = true;
    this.#error = this.#note = null;
    this.#app.changed();
    const path = `a1/workspaces/${encodeURIComponent(workspace)}/archive?mode=${this.#mode}`;
    let taken = false;
    try {
      /** @type {Written} */
      const written = await this.#app.client.call(path, { method: "PUT", body: this.#file ?? "", headers: { "Content-Type": "application/zip" } });
      this.#file = null;
      if (this.#input) this.#input.value = "";
      taken = true;
      await this.#sent();
      this.#note = `Version ${written.version} is there: ${changes(written)}.`;
    } catch (error) {
      if (!this.#app.refused(error)) this.#error = error;
      if (error instanceof ApiError && (error.status === 0 || error.status >= 500)) {
        this.#error = new ApiError(error.status, "not_known", LOST, { requestId: error.requestId });
        await this.#sent();
      }
    }
    this.#busy = false;
    this.#app.changed();
    return taken;
  }

  /** @param {Event} event */
  async #choose(event) {
    this.#input = /** @type {HTMLInputElement} */ (event.target);
    const file = this.#input.files?.[0] ?? null;
    const choice = ++this.#choice;
    this.#error = this.#note = null;
    this.#file = null;
    const refusal = file && (await refusalOf(file));
    if (choice !== this.#choice) return;
    [this.#file, this.#refusal] = [file, refusal];
    this.#app.changed();
  }

  /** The fields: the zip and, for a workspace that has files, what happens to them. */
  fields(hasFiles = true) {
    const mode = (/** @type {"merge" | "replace"} */ value, /** @type {string} */ label) => html`<label class="check">
      <input type="radio" name="mode" value=${value} .checked=${this.#mode === value} ?disabled=${this.#busy} @change=${() => ((this.#mode = value), this.#app.changed())}> ${label}</label>`;
    return html`<label><span>Zip <span class="hint">(at most 4 MB)</span></span>
        <input type="file" accept=".zip,application/zip" ?disabled=${this.#busy} @change=${(/** @type {Event} */ event) => this.#choose(event)}></label>
      ${hasFiles
        ? html`<fieldset><legend>The files that are there</legend>
            ${mode("merge", "Keep them. Files with the same path are replaced.")} ${mode("replace", "Delete those that the zip does not have.")}</fieldset>`
        : ""}
      ${this.#refusal ? html`<p class="state failed" role="alert">${this.#refusal}</p>` : ""} ${this.#error ? failure(this.#error) : ""}
      ${this.#note ? html`<p class="state" role="status">${this.#note}</p>` : ""}`;
  }
}

/**
 * Return why a file cannot be sent, or null.
 * @param {File} file
 */
async function refusalOf(file) {
  if (file.size > MAX_BYTES) return `“${file.name}” has ${size(file.size)}. At most 4 MB can be sent at once: make several zips and add them one after another.`;
  try {
    const [p, k] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
    return p === 0x50 && k === 0x4b ? null : `“${file.name}” is not a zip.`;
  } catch {
    return `“${file.name}” cannot be read. Choose it again.`;
  }
}

/** The button that saves a version as a zip. */
export class ArchiveButton {
  #busy = false;
  /** @type {unknown} */
  #error = null;
  #app;

  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.#app = app;
  }

  /**
   * @param {string} workspace
   * @param {number} version
   */
  async #save(workspace, version) {
    if (this.#busy) return;
    this.#busy = true;
    this.#error = null;
    this.#app.changed();
    try {
      const response = await this.#app.client.send(`a1/workspaces/${encodeURIComponent(workspace)}/archive?version=${version}`);
      save(await wholeBody(response), `${workspace}-version-${version}.zip`);
    } catch (error) {
      if (!this.#app.refused(error)) this.#error = error;
    }
    this.#busy = false;
    this.#app.changed();
  }

  /**
   * @param {string} workspace
   * @param {number} version
   */
  render(workspace, version) {
    const start = () => void this.#save(workspace, version);
    return html`<button type="button" ?disabled=${this.#busy} @click=${start}>${this.#busy ? "Fetching the zip …" : "Download as zip"}</button>
      ${this.#error ? failure(this.#error, start) : ""}`;
  }
}
