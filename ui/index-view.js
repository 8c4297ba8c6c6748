/** One index: what it holds, a search, its uploads and its documents. */

import { ApiError } from "./errors.js";
import { count, number, size, when } from "./format.js";
import { Pages } from "./pages.js";
import { passageItem } from "./passage.js";
import { Resource } from "./resource.js";
import { fragment } from "./router.js";
import { createSearch } from "./search.js";
import { TYPES } from "./upload.js";
import { UploadQueue } from "./upload-queue.js";
import { Uploads } from "./uploads.js";
import { html } from "lit-html";

/** @typedef {{index: any | null}} Description null if there is no such index yet */

export class IndexView {
  #app;
  #id;
  /** @type {Resource<Description>} */
  #description;
  /** @type {Pages<import("./passage.js").Passage>} */
  #documents;
  #search;
  #queue;
  #uploads;
  #isDropTarget = false;

  /**
   * @param {import("./app.js").App} app
   * @param {string} id
   */
  constructor(app, id) {
    const path = `a1/rag/indices/${encodeURIComponent(id)}`;
    this.#app = app;
    this.#id = id;
    this.#description = new Resource(
      () => describe(app, path),
      (error) => {
        if (error) app.refused(error);
        else if (this.#description.value?.index) void this.#documents.load();
        app.changed();
      },
    );
    this.#documents = new Pages(app, `${path}/documents?limit=20`, "documents");
    this.#search = createSearch(app, path);
    this.#queue = new UploadQueue(app, `${path}/uploads`, (upload, file) => this.#uploads.follow(upload, file));
    this.#uploads = new Uploads(app, `${path}/uploads`, (upload) => this.#queue.holds(upload), () => this.#description.load());
  }

  open() {
    void this.#description.load();
    this.#uploads.open();
  }

  /** Stop reading and polling. Files are still sent, unless the user has signed out. */
  close() {
    this.#description.close();
    this.#documents.close();
    this.#uploads.close();
    if (this.#app.client.closed) this.#queue.cancelAll();
  }

  render() {
    return html`<div class=${this.#isDropTarget ? "panel dropping" : "panel"} @dragover=${this.#drag} @dragleave=${this.#leave} @drop=${this.#drop}>
      <p><a href=${fragment("indices")}>All indices</a></p>
      <header class="panel-head"><h1><bdi>${this.#id}</bdi></h1><button type="button" @click=${() => this.open()}>Refresh</button></header>
      ${this.#description.show(({ index }) => (index ? facts(index) : html`<p class="state">There is no index of this name yet. Upload a file to create it.</p>`))}
      ${this.#description.value?.index ? html`<section aria-labelledby="search"><h2 id="search">Search</h2>${this.#search.render()}</section>` : ""}
      <section aria-labelledby="files">
        <h2 id="files">Files</h2>
        <label class="chooser">Add files, or drop them here
          <input type="file" multiple accept=${[...TYPES.keys()].join(",")} aria-describedby="file-types" @change=${this.#choose}>
        </label>
        <p class="hint" id="file-types">
          <code>.jsonl</code> and <code>.csv</code> have a document in each line or row (column <code>text</code>); <code>.txt</code> and <code>.md</code> are split into passages. UTF-8, at most 5 GB each.
        </p>
        ${this.#queue.render()} ${this.#uploads.render()}
      </section>
      ${
        this.#description.value?.index
          ? html`<section aria-labelledby="documents">
              <h2 id="documents">Documents</h2>
              ${this.#documents.show(
                (documents) => html`<ol class="passages" aria-label="Documents">${documents.map(passageItem)}</ol>`,
                html`<p class="quiet">This index has no documents.</p>`,
              )}
            </section>`
          : ""
      }
    </div>`;
  }

  /** @param {Event} event */
  #choose = (event) => {
    const input = /** @type {HTMLInputElement} */ (event.currentTarget);
    this.#queue.add([...(input.files ?? [])]);
    input.value = ""; // so that the same file can be chosen again
  };

  /** @param {DragEvent} event */
  #drag = (event) => {
    event.preventDefault();
    if (this.#isDropTarget) return;
    this.#isDropTarget = true;
    this.#app.changed();
  };

  /** @param {DragEvent} event */
  #leave = (event) => {
    const into = event.relatedTarget;
    if (into instanceof Node && /** @type {Node} */ (event.currentTarget).contains(into)) return;
    this.#isDropTarget = false;
    this.#app.changed();
  };

  /** @param {DragEvent} event */
  #drop = (event) => {
    event.preventDefault();
    this.#isDropTarget = false;
    this.#queue.add([...(event.dataTransfer?.files ?? [])]);
  };
}

/**
 * @param {import("./app.js").App} app
 * @param {string} path
 * @returns {Promise<Description>}
 */
async function describe(app, path) {
  try {
    return { index: await app.client.call(path) };
  } catch (error) {
    if (error instanceof ApiError && error.code === "index_not_found") return { index: null };
    throw error;
  }
}

/** @param {any} index */
function facts(index) {
  return html`<dl class="facts">
    <div><dt>Documents</dt><dd>${number(index.doc_count)}</dd></div>
    <div><dt>Text</dt><dd>${size(index.total_text_bytes)}</dd></div>
    <div><dt>Version</dt><dd>${number(index.version)}</dd></div>
    <div><dt>Model</dt><dd><bdi>${index.embedding_model}</bdi>, ${count(index.dimensions, "dimension")}</dd></div>
    <div><dt>Created</dt><dd>${when(index.created_at)}</dd></div>
    <div><dt>Updated</dt><dd>${when(index.updated_at)}</dd></div>
  </dl>`;
}
