/** Bringing back files of an earlier version, after the user has confirmed it. */

import { changes } from "./archive.js";
import { showDialog } from "./dialog.js";
import { count } from "./format.js";
import { failure } from "./resource.js";
import { fragment } from "./router.js";
import { html } from "lit-html";

export class Restore {
  #busy = false;
  /** @type {unknown} */
  #error = null;
  /** @type {(() => void) | null} repeats the request that failed */
  #retry = null;
  /** @type {import("./archive.js").Written | null} */
  #done = null;
  #app;
  #workspace;
  #restored;

  /**
   * @param {import("./app.js").App} app
   * @param {string} workspace
   * @param {() => void} restored is called when there is a new version
   */
  constructor(app, workspace, restored) {
    this.#app = app;
    this.#workspace = workspace;
    this.#restored = restored;
  }

  /**
   * Bring back a version, or some of its files, if the user confirms it.
   * @param {number} version
   * @param {string[] | null} paths null: all
   */
  async ask(version, paths) {
    if (this.#busy) return;
    this.reset();
    this.#app.changed();
    const what = paths === null ? "all files" : paths.length === 1 ? html`<bdi>${paths[0]}</bdi>` : count(paths.length, "file");
    const question = html`<p>This makes a new version in which ${what} ${paths?.length === 1 ? "is" : "are"} as in version ${version}.
      What version ${version} does not have is deleted. ${paths ? "All other files stay as they are." : ""}</p>
      <p>Every version is kept, so you can take this back.</p>`;
    if (!(await showDialog("Restore files?", question, { action: "Restore", refusal: "Cancel" }))) return;
    const key = `page-${crypto.randomUUID()}`; // names the request: a repeated one makes no second version
    await this.#run({ version, ...(paths ? { paths } : {}) }, key);
  }

  /** Forget the outcome of the last one. */
  reset() {
    this.#error = this.#done = this.#retry = null;
  }

  /**
   * @param {{version: number, paths?: string[]}} json
   * @param {string} key
   */
  async #run(json, key) {
    if (this.#busy) return;
    this.#busy = true;
    this.#error = null;
    this.#app.changed();
    try {
      const path = `a1/workspaces/${encodeURIComponent(this.#workspace)}/restore`;
      this.#done = await this.#app.client.call(path, { method: "POST", json, headers: { "Idempotency-Key": key } });
      this.#restored();
    } catch (error) {
      if (!this.#app.refused(error)) this.#error = error;
      this.#retry = () => void this.#run(json, key);
    }
    this.#busy = false;
    this.#app.changed();
  }

  render() {
    if (this.#busy) return html`<p class="state" role="status">Restoring …</p>`;
    if (this.#error) return failure(this.#error, this.#retry);
    const done = this.#done;
    if (!done) return "";
    const version = String(done.version);
    return html`<p class="state" role="status">Restored: ${changes(done)}. <a href=${fragment("workspaces", this.#workspace, "versions", version)}>See version ${version}</a></p>`;
  }
}
