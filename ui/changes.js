/** What a call that waits would change, as the user reads it: part by part, and to its end before it can be approved. */

import { parse } from "./diff.js";

const MAX_LINES = 500; // of one part
const MAX_CHARACTERS = 100_000; // of one part; a line is never divided
const MAX_FILES = 100; // of one part

/**
 * @typedef {import("./diff.js").File} File
 * @typedef {{file: File, lines: import("./diff.js").Line[], isFirst: boolean}} Piece some lines of a file
 */

/** The parts that the user has seen, and those to come. */
export class Changes {
  /** @type {Piece[][]} the parts that are shown */
  parts = [];
  /** @type {string | null} the last cursor of a change that was read from its route */
  seen = null;
  /** True while a page is read. */
  isReading = false;
  /** @type {Piece[][]} */
  #others = [];
  /** @type {string | null} the address of the page to read next, relative to the base */
  #next = null;
  #path;
  #client;

  /**
   * @param {import("./client.js").Client} client
   * @param {any} approval as `GET /a1/approvals/{id}` answers
   */
  constructor(client, approval) {
    this.#client = client;
    this.#path = `a1/approvals/${encodeURIComponent(approval.id)}/changes?limit=1000`;
    if (approval.preview?.complete === false) this.#next = this.#path;
    else this.#add((approval.rich ?? []).filter((/** @type {any} */ block) => block?.kind === "diff"));
    if (this.#others.length) this.parts.push(...this.#others.splice(0, 1));
  }

  /** True after the last part was shown. */
  get isRead() {
    return this.#next === null && !this.#others.length;
  }

  /**
   * Show the next part.
   * @throws {import("./errors.js").ApiError}
   */
  async more() {
    this.isReading = true;
    try {
      while (!this.#others.length && this.#next !== null) await this.#read();
      await this.#readEnd();
    } finally {
      this.isReading = false;
    }
    this.parts.push(...this.#others.splice(0, 1));
  }

  async #read() {
    const page = await this.#client.call(/** @type {string} */ (this.#next));
    this.#add(page.changes);
    this.#follow(page.next_cursor);
  }

  /** With the last part, read the page after the last change: it tells that nothing follows. */
  async #readEnd() {
    if (this.#others.length > 1 || this.#next === null) return;
    await this.#read();
  }

  /** @param {string | null} cursor */
  #follow(cursor) {
    this.#next = cursor === null ? null : `${this.#path}&cursor=${encodeURIComponent(cursor)}`;
    if (cursor !== null) this.seen = cursor;
  }

  /** @param {File[]} files */
  #add(files) {
    this.#others.push(...divide(files));
  }
}

/**
 * Divide diffs into parts that a person reads and a browser shows at once.
 * @param {File[]} files
 */
function divide(files) {
  /** @type {Piece[][]} */
  const parts = [];
  let lines = MAX_LINES;
  let characters = MAX_CHARACTERS;
  for (const file of files) {
    /** @type {Piece | null} */
    let piece = null;
    for (const line of [null, ...parse(String(file.unified ?? ""))]) {
      const isFull = lines >= MAX_LINES || characters >= MAX_CHARACTERS || (line === null && (parts.at(-1)?.length ?? 0) >= MAX_FILES);
      if (isFull) {
        parts.push([]);
        [lines, characters] = [0, 0];
      }
      if (isFull || piece === null) parts.at(-1)?.push((piece = { file, lines: [], isFirst: line === null }));
      if (line === null) continue;
      piece?.lines.push(line);
      lines++;
      characters += line.text.length;
    }
  }
  return parts;
}
