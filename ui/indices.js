/** The knowledge indices of the tenant, and the one that is open. */

import "./shared.js";
import { number, size, when } from "./format.js";
import { IndexView } from "./index-view.js";
import { Pages } from "./pages.js";
import { fragment } from "./router.js";
import { html } from "lit-html";

const ID = /^[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}$/;
const RULE = "1 to 128 letters, digits and . _ : -, beginning with a letter or a digit";

/**
 * @param {import("./app.js").App} app
 * @returns {import("./app.js").View}
 */
export function createIndices(app) {
  const list = new Pages(app, "a1/rag/indices?limit=100", "indices");
  /** @type {Map<string, IndexView>} */
  const views = new Map();
  /** @type {string | null} */
  let current = null;

  /** @param {string[]} params */
  function open(params) {
    const id = params[0] ?? null;
    if (current !== null && current !== id) views.get(current)?.close();
    current = id;
    if (id === null) {
      void list.load();
      return;
    }
    if (!ID.test(id)) return;
    const view = views.get(id) ?? new IndexView(app, id);
    views.set(id, view);
    view.open();
  }

  function close() {
    list.close();
    if (app.client.closed) for (const view of views.values()) view.close(); // every file that is being sent
    else if (current !== null) views.get(current)?.close();
  }

  /** @param {SubmitEvent} event */
  function create(event) {
    event.preventDefault();
    app.go(fragment("indices", String(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)).get("id"))));
  }

  /** @param {any[]} indices */
  function table(indices) {
    return html`<div class="wide" tabindex="0" role="region" aria-label="Indices">
      <table class="full">
        <thead>
          <tr>
            <th scope="col">Index</th><th scope="col" class="figure">Documents</th><th scope="col" class="figure">Text</th><th scope="col" class="figure">Version</th>
            <th scope="col">Model</th><th scope="col">Created</th><th scope="col">Updated</th>
          </tr>
        </thead>
        <tbody>
          ${indices.map(
            (index) => html`<tr>
              <th scope="row"><a href=${fragment("indices", index.id)}><bdi>${index.id}</bdi></a></th>
              <td class="figure">${number(index.doc_count)}</td><td class="figure">${size(index.total_text_bytes)}</td><td class="figure">${number(index.version)}</td>
              <td><bdi>${index.embedding_model}</bdi></td><td><time datetime=${index.created_at}>${when(index.created_at)}</time></td><td><time datetime=${index.updated_at}>${when(index.updated_at)}</time></td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`;
  }

  function all() {
    return html`<div class="panel">
      <header class="panel-head"><h1>Indices</h1><button type="button" @click=${() => list.load()}>Refresh</button></header>
      <p class="quiet">Agents find passages of your company's documents in these indices. Open one to search it or to add files.</p>
      ${list.show(table, html`<p class="state">There are no indices yet. Name a new one, then add files to it.</p>`)}
      <form class="new-index" @submit=${create}>
        <label>New index <input name="id" required maxlength="128" pattern="[A-Za-z0-9][A-Za-z0-9._:\\-]*" title=${RULE} autocomplete="off" spellcheck="false"></label>
        <button>Open</button>
      </form>
      <p class="hint">Its first file creates it.</p>
    </div>`;
  }

  function render() {
    const view = current === null ? null : views.get(current);
    if (view) return view.render();
    if (current === null) return all();
    return html`<div class="panel">
      <p><a href=${fragment("indices")}>All indices</a></p>
      <h1>Not an index</h1>
      <p class="state failed" role="alert">An index cannot have the name “<bdi>${current.slice(0, 200)}</bdi>”: a name has ${RULE}.</p>
    </div>`;
  }

  return { open, close, render };
}
