/** Unified diffs with line numbers. */

import { number } from "./format.js";
import { long } from "./long.js";
import { visible } from "./visible.js";
import { html } from "./vendor-lit-html.js";

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;
const FIRST_LINES = 500;
const MORE_LINES = 2_000;
const MAX_WIDTH = 2_000; // characters

/** @typedef {{kind: "added" | "removed" | "same" | "hunk", before: number | null, after: number | null, text: string}} Line */

/**
 * @param {{path: string, status: string, added: number, removed: number, unified: string, truncated: boolean}} file
 * @returns {import("./resource.js").Content}
 */
export function diff(file) {
  const lines = parse(String(file.unified ?? ""));
  return html`<figure class="diff">
    <figcaption><bdi>${visible(String(file.path))}</bdi> <span class="quiet">${file.status}</span> <span class="added">+${file.added}</span> <span class="removed">−${file.removed}</span></figcaption>
    ${lines.length ? part(lines, FIRST_LINES) : html`<p class="quiet">There is no diff: the file is not text, or too large.</p>`}
    ${file.truncated ? html`<p class="quiet">The diff was cut.</p>` : ""}
  </figure>`;
}

/**
 * Return the first lines, and offer the others part by part.
 * @param {Line[]} lines
 * @param {number} size
 * @returns {import("./resource.js").Content}
 */
function part(lines, size) {
  const others = lines.length - size;
  if (others <= 0) return table(lines);
  return html`${table(lines.slice(0, size))}${long(`Show more of the other ${number(others)} lines`, () => part(lines.slice(size), MORE_LINES))}`;
}

/** @param {Line[]} lines */
function table(lines) {
  return html`<div class="wide" tabindex="0" role="region" aria-label="Changed lines"><table>
    <thead class="unseen"><tr><th scope="col">Before</th><th scope="col">After</th><th scope="col">Change</th><th scope="col">Line</th></tr></thead>
    <tbody>${lines.map(row)}</tbody></table></div>`;
}

/** @param {Line} line */
function row({ kind, before, after, text }) {
  const sign = kind === "added" ? "+" : kind === "removed" ? "−" : "";
  return html`<tr class=${kind}><td class="figure">${before ?? ""}</td><td class="figure">${after ?? ""}</td><td>${sign}</td>
    <td>${text.length > MAX_WIDTH ? cut(text) : html`<code>${visible(text)}</code>`}</td></tr>`;
}

/**
 * Return the beginning of a line, with a way to see the rest: nobody consents to what cannot be seen.
 * @param {string} text
 */
function cut(text) {
  return html`<code>${visible(text.slice(0, MAX_WIDTH))} …</code>${long(`The other ${number(text.length - MAX_WIDTH)} characters`, () => html`<code>${visible(text.slice(MAX_WIDTH))}</code>`)}`;
}

/**
 * @param {string} unified
 * @returns {Line[]}
 */
function parse(unified) {
  /** @type {Line[]} */
  const lines = [];
  let before = 0;
  let after = 0;
  let inHunk = false;
  for (const text of unified.split("\n")) {
    const hunk = HUNK.exec(text);
    if (hunk) {
      [before, after, inHunk] = [Number(hunk[1]), Number(hunk[2]), true];
      lines.push({ kind: "hunk", before: null, after: null, text });
    } else if (!inHunk || text === "") continue;
    else if (text[0] === "+") lines.push({ kind: "added", before: null, after: after++, text: text.slice(1) });
    else if (text[0] === "-") lines.push({ kind: "removed", before: before++, after: null, text: text.slice(1) });
    else if (text[0] === "\\") lines.push({ kind: "hunk", before: null, after: null, text });
    else lines.push({ kind: "same", before: before++, after: after++, text: text.slice(1) });
  }
  return lines;
}
