/**
 * Markdown to safe DOM, while it is being written.
 *
 * markdown-it makes HTML without raw HTML and without images; DOMPurify then lets only the tags and attributes of an allow-list
 * through. Blocks that have ended are kept as they are, and only the last block is rendered again.
 */

import { codeBlock } from "./code.js";
import { long } from "./long.js";
import { sanitize } from "./sanitize.js";
import { visible } from "./visible.js";
import { html, render } from "lit-html";
import MarkdownIt from "markdown-it";

const MAX_BLOCK = 16_000; // characters of a block that is rendered again while it grows
const MAX_SHOWN = 120_000; // characters that are shown before the user asks for all
const MAX_NESTING = 40;
const MAX_COLUMNS = 40; // of a table
const MAX_ROWS = 200;
const REFERENCE = /^ {0,3}\[[^\]]{1,999}\]:/m;

const parser = new MarkdownIt({ html: false, linkify: true, breaks: false, maxNesting: MAX_NESTING }).disable("image");
// An autolink needs its scheme: a word that ends like a domain is not one.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
parser.validateLink = isSafeLink;
/**
 * Write the alignment of a cell as a class: the page's policy forbids the style attribute that it would be.
 * @type {NonNullable<typeof parser.renderer.rules.text>}
 */
const align = (tokens, index, options, _, renderer) => {
  const cell = tokens[index];
  const side = /^text-align:(left|center|right)$/.exec(String(cell.attrGet("style") ?? ""))?.[1];
  cell.attrs = side ? [["class", `align-${side}`]] : null;
  return renderer.renderToken(tokens, index, options);
};
parser.core.ruler.before("inline", "shorten_tables", shortenTables);
parser.renderer.rules.th_open = parser.renderer.rules.td_open = align;

/** A text that grows. Put `element` into the page, and call `update` with the whole text so far. */
export class Markdown {
  element = document.createElement("div");
  /** The text that is in finished blocks, which do not change any more. */
  #finished = 0;
  /** @type {Node[]} what shows the rest */
  #rest = [];
  #complete = false;
  #isCut = false;
  #text = "";

  constructor() {
    this.element.className = "markdown";
  }

  /**
   * @param {string} text
   * @param {boolean} complete nothing will be added
   */
  update(text, complete) {
    if (this.#complete || (text === this.#text && !complete)) return;
    this.#complete = complete;
    if (!text.startsWith(this.#text.slice(0, this.#finished))) this.#reset();
    this.#text = text;
    const isCut = text.length > MAX_SHOWN;
    if (isCut && this.#isCut && !complete) return;
    this.#isCut = isCut;
    // A link may be defined after its use, so such a text is read once more as a whole.
    if (complete && !isCut && this.#finished && REFERENCE.test(text)) this.#reset();
    this.#render(isCut ? text.slice(0, MAX_SHOWN) : text, complete);
    if (isCut && complete) this.#offerAll(text);
  }

  #reset() {
    this.element.replaceChildren();
    this.#finished = 0;
    this.#rest = [];
  }

  /**
   * @param {string} text
   * @param {boolean} complete
   */
  #render(text, complete) {
    const source = text.slice(this.#finished);
    const growing = complete ? "" : lastBlock(source);
    for (const node of this.#rest) node.parentNode?.removeChild(node);
    this.#rest = [];
    const done = source.slice(0, source.length - growing.length);
    if (done) {
      this.element.append(...blocks(done));
      this.#finished += done.length;
    }
    if (!growing) return;
    this.#rest = growing.length > MAX_BLOCK ? [plain(`… ${growing.slice(-MAX_BLOCK)}`)] : blocks(growing, true);
    this.element.append(...this.#rest);
  }

  /** @param {string} text */
  #offerAll(text) {
    const place = document.createElement("div");
    render(html`<p class="quiet">The text has ${text.length.toLocaleString("en")} characters; the first ${MAX_SHOWN.toLocaleString("en")} are shown.</p>
      ${long("Show all as plain text", () => html`<pre class="plain">${text}</pre>`)}`, place);
    this.element.append(place);
  }
}

/**
 * Return the end of a text that may still change: its last top-level block.
 * @param {string} source
 */
function lastBlock(source) {
  if (source.length > MAX_BLOCK && !source.includes("\n\n", source.length - MAX_BLOCK)) return source;
  const tops = parser.parse(source, {}).filter((token) => token.level === 0 && token.map && token.nesting >= 0);
  const start = tops.at(-1)?.map?.[0] ?? 0;
  let at = 0;
  for (let line = 0; line < start; line++) at = source.indexOf("\n", at) + 1;
  return source.slice(at);
}

/**
 * Return the nodes of whole blocks.
 * @param {string} source
 * @param {boolean} [isGrowing] they will be rendered again
 * @returns {Node[]}
 */
function blocks(source, isGrowing = false) {
  /** @type {{cut?: [number, number][]}} */
  const env = {};
  const tokens = parser.parse(source, env);
  if (tokens.some((token) => token.level >= MAX_NESTING - 1)) return nested(source, tokens, isGrowing);
  const fragment = sanitize(parser.renderer.render(tokens, parser.options, env));
  for (const link of fragment.querySelectorAll("a")) showHost(link);
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const language = /(?:^| )language-([\w+#.-]+)/.exec(code?.className ?? "")?.[1] ?? "";
    pre.replaceWith(codeBlock((code ?? pre).textContent ?? "", language, { isGrowing }));
  }
  for (const table of fragment.querySelectorAll("table")) wrap(table);
  for (const [first, last] of env.cut ?? []) fragment.append(whole("The table is shortened.", source.split("\n").slice(first, last).join("\n")));
  return [...fragment.childNodes];
}

/**
 * Return the blocks of a text of which one is nested too deeply: markdown-it would leave out what is in it.
 * @param {string} source
 * @param {ReturnType<typeof parser.parse>} tokens
 * @param {boolean} isGrowing
 * @returns {Node[]}
 */
function nested(source, tokens, isGrowing) {
  const lines = source.split("\n");
  const tops = tokens.flatMap((token) => (token.level === 0 && token.map && token.nesting >= 0 ? [token.map] : []));
  if (tops.length > 1) return tops.flatMap(([first, last]) => blocks(lines.slice(first, last).join("\n"), isGrowing));
  return [source.length > MAX_BLOCK ? whole("The text is nested too deeply.", source) : plain(source)];
}

/**
 * Leave out the cells of a table beyond its first rows and columns, and note its lines in `env.cut`.
 * @param {any} state of markdown-it
 */
function shortenTables(state) {
  const { tokens, env } = state;
  if (!tokens.some((/** @type {any} */ token) => token.type === "table_open")) return;
  let row = 0;
  let column = 0;
  /** @type {any} */
  let table = null;
  state.tokens = tokens.filter((/** @type {any} */ token) => {
    if (token.type === "table_open") [table, row] = [token, 0];
    if (token.type === "tr_open") [row, column] = [row + 1, 0];
    if (token.type === "th_open" || token.type === "td_open") column++;
    const isCell = table && (token.level > table.level + 1);
    const isLeftOut = isCell && (row > MAX_ROWS || (column > MAX_COLUMNS && token.type !== "tr_close" && token.type !== "tr_open"));
    if (isLeftOut && table.map) ((env.cut ??= []), env.cut.at(-1)?.[0] !== table.map[0] && env.cut.push(table.map));
    if (token.type === "table_close") table = null;
    return !isLeftOut;
  });
}

/**
 * @param {string} reason
 * @param {string} source
 */
function whole(reason, source) {
  const place = document.createElement("div");
  render(
    html`<p class="quiet">${reason}</p>${long("Show all of it as plain text", () => html`<pre class="plain">${source}</pre>`)}`,
    place,
  );
  return place;
}

/** @param {HTMLTableElement} table */
function wrap(table) {
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.role = "region";
  box.ariaLabel = "Table";
  table.replaceWith(box);
  box.append(table);
}

/**
 * Show where a link leads, whatever its text says, and keep the text from changing how the host is read.
 * @param {HTMLAnchorElement} link
 */
function showHost(link) {
  const host = safeHost(link.getAttribute("href") ?? "");
  if (!host) {
    link.replaceWith(...link.childNodes);
    return;
  }
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  const shown = document.createElement("span");
  shown.className = "host";
  shown.textContent = ` (${host})`;
  const label = document.createElement("bdi");
  label.append(...link.childNodes);
  const texts = document.createTreeWalker(label, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) text.nodeValue = visible(text.nodeValue ?? "");
  link.append(label, shown);
}

/** @param {string} text */
function plain(text) {
  const element = document.createElement("pre");
  element.className = "plain";
  element.textContent = text;
  return element;
}

/** @param {string} address */
function isSafeLink(address) {
  return safeHost(address) !== null;
}

/**
 * Return the host of an absolute https address, in its ASCII form, or null for every other address.
 * @param {string} address
 */
function safeHost(address) {
  if (!/^https:\/\//i.test(address)) return null;
  try {
    const { host, username, password } = new URL(address);
    return username || password ? null : host;
  } catch {
    return null;
  }
}
