/** The search box of an index. */

import { count } from "./format.js";
import { passageItem } from "./passage.js";
import { failure } from "./resource.js";
import { html } from "lit-html";

const MAX_QUERY_BYTES = 8192;
const NUMBERS = [5, 10, 20, 50];

/**
 * @param {import("./app.js").App} app
 * @param {string} path of the index
 * @returns {{render: () => import("./resource.js").Content}}
 */
export function createSearch(app, path) {
  /** @type {any | null} */
  let answer = null;
  /** @type {unknown} */
  let error = null;
  let searched = { query: "", top_k: NUMBERS[0] };
  let abort = new AbortController();
  let isSearching = false;

  async function search() {
    abort.abort();
    const { signal } = (abort = new AbortController());
    isSearching = true;
    error = null;
    app.changed();
    try {
      const found = await app.client.call(`${path}/query`, { method: "POST", json: searched, signal });
      if (!signal.aborted) answer = found;
    } catch (refusal) {
      if (signal.aborted || app.refused(refusal)) return;
      answer = null;
      error = refusal;
    }
    if (signal.aborted) return;
    isSearching = false;
    app.changed();
  }

  /** @param {SubmitEvent} event */
  function submit(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const data = new FormData(form);
    const query = String(data.get("query"));
    const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("query"));
    const bytes = new TextEncoder().encode(query).length;
    field.setCustomValidity(!query.trim() ? "Enter what to search for." : bytes > MAX_QUERY_BYTES ? `At most ${MAX_QUERY_BYTES} bytes; this has ${bytes}.` : "");
    if (!form.reportValidity()) return;
    searched = { query, top_k: Number(data.get("top_k")) };
    void search();
  }

  /** @param {Event} event */
  function edit(event) {
    /** @type {HTMLInputElement} */ (event.currentTarget).setCustomValidity("");
  }

  function outcome() {
    if (isSearching) return html`<p class="quiet">Searching …</p>`;
    if (!answer) return "";
    return html`<p class="quiet">${answer.results.length ? count(answer.results.length, "passage") : "Nothing found"} for “<bdi>${searched.query.slice(0, 200)}</bdi>” in version ${answer.version}.</p>`;
  }

  return {
    render: () => html`<form class="search" role="search" aria-label="This index" novalidate @submit=${submit}>
        <label class="grows">Search for <input name="query" type="search" autocomplete="off" .value=${searched.query} @input=${edit}></label>
        <label>Results
          <select name="top_k">
            ${NUMBERS.map((value) => html`<option value=${value}>${value}</option>`)}
          </select>
        </label>
        <button class="primary">Search</button>
      </form>
      <div role="status">${outcome()}</div>
      ${error ? failure(error, () => search()) : ""}
      ${answer && !isSearching ? html`<ol class="passages" aria-label="Results">${answer.results.map(passageItem)}</ol>` : ""}`,
  };
}
