/** Unified diffs with line numbers. */

import { number } from "./format.js";
import { long } from "./long.js";
import { visible } from "./visible.js";
import { html } from "lit-html";

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;
const FIRST_LINES = 500;
const MORE_LINES = 2_000;
const MAX_WIDTH = 2_000; // characters

/** @typedef {{kind: "added" | "removed" | "same" | "hunk", before: number | null, after: number | null, text: string}} Line */
/** @typedef {{path: string, status: string, added: number, removed: number, unified: string, truncated: boolean}} File */

/**
 * @param {File} file
 * @returns {import("./resource.js").Content}
 */
export function diff(file) {
  const lines = parse(String(file.unified ?? ""));
  return html`<figure class="diff">
    ${caption(file)}
    ${lines.length ? part(lines, FIRST_LINES) : noLines(file)}
    ${file.truncated ? html`<p class="quiet">The diff was cut.</p>` : ""}
  </figure>`;
}

/**
 * Return some lines of a diff, each whole, for a person who decides about it.
 * @param {File} file
 * @param {Line[]} lines
 * @param {boolean} isFirst
 * @returns {import("./resource.js").Content}
 */
export function diffPart(file, lines, isFirst) {
  return html`<figure class="diff">${caption(file, !isFirst)}
    ${lines.length ? table(lines, Infinity) : noLines(file)} ${file.truncated ? html`<p class="bad">The diff was cut.</p>` : ""}</figure>`;
}

/** @param {File} file */
function caption({ path, status, added, removed }, goesOn = false) {
  return html`<figcaption><bdi>${visible(String(path))}</bdi> <span class="quiet">${status}${goesOn ? ", continued" : ""}</span>
    <span class="added">+${number(added)}</span> <span class="removed">−${number(removed)}</span></figcaption>`;
}

/** @param {File} file */
function noLines({ truncated }) {
  return html`<p class="quiet">${truncated ? "There is no diff: the file is not text, or too large." : "No line differs: the file is empty."}</p>`;
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

/**
 * @param {Line[]} lines
 * @param {number} [width] characters of a line that are shown at once
 */
function table(lines, width = MAX_WIDTH) {
  return html`<div class="wide" tabindex="0" role="region" aria-label="Changed lines"><table>
    <thead class="unseen"><tr><th scope="col">Before</th><th scope="col">After</th><th scope="col">Change</th><th scope="col">Line</th></tr></thead>
    <tbody>${lines.map((line) => row(line, width))}</tbody></table></div>`;
}

/**
 * @param {Line} line
 * @param {number} width
 */
function row({ kind, before, after, text }, width) {
  const sign = kind === "added" ? "+" : kind === "removed" ? "−" : "";
  const shown = visible(text);
  return html`<tr class=${kind}><td class="figure">${before ?? ""}</td><td class="figure">${after ?? ""}</td><td>${sign}</td>
    <td>${shown.length > width ? cut(shown, width) : html`<code>${shown}</code>`}</td></tr>`;
}

/**
 * Return the beginning of a line, with a way to see the rest.
 * @param {string} text
 * @param {number} width
 */
function cut(text, width) {
  return html`<code>${text.slice(0, width)} …</code>${long(`The other ${number(text.length - width)} characters`, () => html`<code>${text.slice(width)}</code>`)}`;
}

/**
 * @param {string} unified
 * @returns {Line[]}
 */
export function parse(unified) {
  /** @type {Line[]} */
  const lines = [];
  let before = 0;
  let after = 0;
  let inHunk = !unified.startsWith("--- "); // the words of git about a file that is not text have no hunks
  for (const text of unified.split("\n")) {
    const hunk = HUNK.exec(text);
    if (hunk) {
      [before, after, inHunk] = [Number(hunk[1]), Number(hunk[2]), true];
      lines.push({ kind: "hunk", before: null, after: null, text });
    } else if (!inHunk || text === "") continue;
    else if (text[0] === "+") lines.push({ kind: "added", before: null, after: after++, text: text.slice(1) });
    else if (text[0] === "-") lines.push({ kind: "removed", before: before++, after: null, text: text.slice(1) });
    else if (text[0] === "\\" || before + after === 0) lines.push({ kind: "hunk", before: null, after: null, text });
    else lines.push({ kind: "same", before: before++, after: after++, text: text.slice(1) });
  }
  return lines;
}
