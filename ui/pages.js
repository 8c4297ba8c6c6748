/** A list that the user reads page by page. */

import { Resource } from "./resource.js";
import { html } from "lit-html";

/**
 * The entries of a list that have been read so far.
 * @template T
 */
export class Pages {
  /** @type {Resource<{entries: T[], next: string | null}>} */
  #list;
  /** @type {Resource<boolean>} reading one more page */
  #more;
  #app;
  #path;
  #field;
  /** How many pages a reload reads. */
  #count = 1;
  #isReading = false;

  /**
   * @param {import("./app.js").App} app
   * @param {string} path of the list, without `cursor`
   * @param {string} field of the answer that has the entries
   * @param {() => void} [arrived] is called when entries have been read
   */
  constructor(app, path, field, arrived = () => {}) {
    this.#app = app;
    this.#path = path;
    this.#field = field;
    const changed = (/** @type {unknown} */ error) => {
      if (error) app.refused(error);
      else arrived();
      app.changed();
    };
    this.#list = new Resource(() => this.#read(), changed);
    this.#more = new Resource(() => this.#readMore(), (error) => ((this.#isReading = false), changed(error)));
  }

  /** What has been read so far; empty while nothing has. */
  get entries() {
    return this.#list.value?.entries ?? [];
  }

  /** Why the list did not arrive, or null. */
  get error() {
    return this.#list.error;
  }

  /** True if no page is missing. */
  get isComplete() {
    return this.#list.value?.next === null;
  }

  /** Read as many pages as are shown. */
  load() {
    return this.#list.load();
  }

  close() {
    this.#list.close();
    this.#more.close();
    this.#isReading = false;
  }

  /**
   * Return the entries, or the state in which the list is.
   * @param {(entries: T[]) => import("./resource.js").Content} ready
   * @param {import("./resource.js").Content | null} empty shown instead of no entries
   * @param {boolean} [isQuiet] another place of the view shows why the list did not arrive
   */
  show(ready, empty, isQuiet = false) {
    return this.#list.show(({ entries, next }) => html`${ready(entries)}
      ${this.#more.error ? this.#more.show(() => "") : ""}
      ${next === null ? "" : html`<p><button type="button" ?disabled=${this.#isReading} @click=${() => this.#next()}>${this.#isReading ? "Loading …" : "Show more"}</button></p>`}`, {
      isQuiet,
      empty: ({ entries, next }) => (entries.length || next !== null ? null : empty),
    });
  }

  #next() {
    if (this.#isReading) return;
    this.#isReading = true;
    this.#app.changed();
    void this.#more.load();
  }

  async #read() {
    /** @type {T[]} */
    const entries = [];
    let next = null;
    let read = 0;
    for await (const page of this.#app.client.pages(this.#path)) {
      entries.push(...page[this.#field]);
      next = page.next_cursor ?? null;
      if (++read >= this.#count) break;
    }
    return { entries, next };
  }

  async #readMore() {
    const list = this.#list.value;
    if (!list || list.next === null) return true;
    const page = await this.#app.client.call(`${this.#path}${this.#path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(list.next)}`);
    if (this.#list.value !== list) return true; // it was loaded again meanwhile
    this.#list.value = { entries: [...list.entries, ...page[this.#field]], next: page.next_cursor ?? null };
    this.#count++;
    return true;
  }
}
