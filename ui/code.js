/** Code with highlighting. The highlighter is loaded with the first code that needs it. */

import { announce } from "./announce.js";
import { highlight } from "./highlight.js";
import { long } from "./long.js";
import { sanitize } from "./sanitize.js";
import { visible } from "./visible.js";
import { html, render } from "lit-html";

const MAX_SHOWN = 100_000;
const MAX_LINE = 5_000;

/**
 * Return an element with code, and a button that copies it.
 * @param {string} text
 * @param {string} language as the author of the text names it, or ""
 * @param {{firstLine?: number, isGrowing?: boolean}} [options] `firstLine`: show line numbers from this one on. `isGrowing`: more of the
 *   text is to come, so it is not highlighted yet
 * @returns {HTMLElement}
 */
export function codeBlock(text, language, { firstLine, isGrowing = false } = {}) {
  const element = document.createElement("div");
  element.className = "code";
  const code = document.createElement("code");
  const isLong = text.length > MAX_SHOWN || hasLongLine(text, MAX_LINE);
  const shown = visible(isLong ? shorten(text) : text);
  code.textContent = shown;
  const copy = () => void navigator.clipboard?.writeText(text).then(() => announce("Copied."), () => announce("The browser did not allow it to copy."));
  const lines = firstLine === undefined ? "" : html`<span class="lines" aria-hidden="true">${numbers(firstLine, shown)}</span>`;
  render(
    html`<div class="head"><bdi class="quiet">${language.slice(0, 40)}</bdi><button type="button" class="link" @click=${copy}>Copy</button></div>
      <pre tabindex="0" role="region" aria-label="Code">${lines}${code}</pre>
      ${isLong ? html`<p class="quiet">Shortened.</p>${long("Show all", () => html`<pre class="plain">${text}</pre>`)}` : ""}`,
    element,
  );
  if (language && !isLong && !isGrowing) void highlight(shown, language).then((source) => source === null || code.replaceChildren(sanitize(source)));
  return element;
}

/**
 * @param {string} text
 * @param {number} length
 */
function hasLongLine(text, length) {
  for (let start = 0; start < text.length; ) {
    const end = text.indexOf("\n", start);
    if ((end < 0 ? text.length : end) - start > length) return true;
    if (end < 0) return false;
    start = end + 1;
  }
  return false;
}

/** @param {string} text */
function shorten(text) {
  const lines = text.slice(0, MAX_SHOWN).split("\n");
  return lines.map((line) => (line.length > MAX_LINE ? `${line.slice(0, MAX_LINE)} …` : line)).join("\n");
}

/**
 * @param {number} first
 * @param {string} text
 */
function numbers(first, text) {
  const count = text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
  return Array.from({ length: count }, (_, index) => first + index).join("\n");
}
