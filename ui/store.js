/**
 * The values that the tab remembers: `sessionStorage` keeps them over a reload, and a closed tab forgets them.
 *
 * @typedef {"light" | "dark" | null} Theme null follows the system
 */

const PREFIX = "spass:";

export class Store {
  /** @type {Map<string, string>} */
  #values = new Map();
  /** @type {Set<string>} names whose values the browser has refused, because its storage is full */
  #refused = new Set();
  #isOff = false;

  constructor() {
    try {
      for (const name of Object.keys(sessionStorage)) {
        if (name.startsWith(PREFIX)) this.#values.set(name.slice(PREFIX.length), sessionStorage.getItem(name) ?? "");
      }
    } catch {
      this.#isOff = true; // by the user
    }
  }

  /** True if a reload restores every value. */
  get holds() {
    return !this.#isOff && this.#refused.size === 0;
  }

  /**
   * Return a value, or null.
   * @param {string} name
   */
  get(name) {
    return this.#values.get(name) ?? null;
  }

  /**
   * Return a value that was stored as JSON, or `other` if there is none, or one that `fits` does not accept.
   * @template T
   * @param {string} name
   * @param {(value: any) => boolean} fits
   * @param {T} other
   * @returns {T}
   */
  json(name, fits, other) {
    try {
      const value = JSON.parse(this.get(name) ?? "null");
      return fits(value) ? value : other;
    } catch {
      return other;
    }
  }

  /**
   * Store a value, or remove it (null). If the browser's storage is full, the tab still has it until it is reloaded.
   * @param {string} name
   * @param {string | null} value
   */
  set(name, value) {
    const wasRefused = this.#refused.delete(name);
    const isStored = value === this.get(name) && !wasRefused;
    if (value === null) this.#values.delete(name);
    else this.#values.set(name, value);
    if (isStored || this.#isOff) return;
    sessionStorage.removeItem(PREFIX + name); // an older value must not return with a reload
    try {
      if (value !== null) sessionStorage.setItem(PREFIX + name, value);
    } catch {
      this.#refused.add(name);
    }
  }

  /** Remove everything. */
  clear() {
    for (const name of [...this.#values.keys()]) this.set(name, null);
  }
}
