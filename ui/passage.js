/** Documents as the lists and the search show them. */

import { when } from "./format.js";
import { long } from "./long.js";
import { html, render } from "lit-html";

/**
 * @typedef {object} Passage
 * @property {string} id
 * @property {string} text
 * @property {Record<string, unknown>} metadata
 * @property {number} [score]
 * @property {string} [updated_at]
 */

const TEXT_CHARACTERS = 600;
const FIELDS = 6;
const VALUE_CHARACTERS = 120;

/** @type {WeakMap<Passage, HTMLElement>} */
const elements = new WeakMap();

/**
 * Return the list item of a document. It is rendered once, so that thousands of documents cost nothing per frame.
 * @param {Passage} passage
 * @returns {HTMLElement}
 */
export function passageItem(passage) {
  let element = elements.get(passage);
  if (!element) {
    element = document.createElement("li");
    render(content(passage), element);
    elements.set(passage, element);
  }
  return element;
}

/** @param {Passage} passage */
function content({ id, text, metadata, score, updated_at: updated }) {
  const fields = Object.entries(metadata ?? {});
  const cut = text.length > TEXT_CHARACTERS ? text.slice(0, TEXT_CHARACTERS).replace(/[\ud800-\udbff]$/, "") : text;
  return html`<p class="passage-head">
      <bdi><code>${id}</code></bdi>
      <span class="quiet">${score === undefined ? when(updated ?? null) : `score ${score}`}</span>
    </p>
    <div class="passage-text" dir="auto">${cut}${cut === text ? "" : " …"}</div>
    ${cut === text ? "" : long("The whole text", () => html`<div class="passage-text" dir="auto">${text}</div>`)}
    ${fields.length ? metadataList(fields.slice(0, FIELDS)) : ""}
    ${fields.length > FIELDS ? long(`${fields.length - FIELDS} more fields`, () => metadataList(fields.slice(FIELDS))) : ""}`;
}

/** @param {[string, unknown][]} fields */
function metadataList(fields) {
  return html`<dl class="metadata">
    ${fields.map(([name, value]) => html`<div><dt><bdi>${name}</bdi></dt><dd>${shown(typeof value === "string" ? value : JSON.stringify(value))}</dd></div>`)}
  </dl>`;
}

/** @param {string} value */
function shown(value) {
  if (value.length <= VALUE_CHARACTERS) return html`<bdi>${value}</bdi>`;
  return long(html`<bdi>${value.slice(0, VALUE_CHARACTERS)}</bdi> …`, () => html`<bdi>${value}</bdi>`);
}
