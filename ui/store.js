/**
 * What the tab remembers: `sessionStorage` keeps it over a reload, and a closed tab forgets it.
 *
 * @typedef {"light" | "dark" | null} Theme null follows the system
 */

const PREFIX = "spass:";

export class Store {
  /** False after the browser has refused to store something, because its storage is full. */
  holds = true;
  /** @type {Map<string, string>} */
  #values = new Map();

  constructor() {
    for (let index = 0; index < sessionStorage.length; index++) {
      const name = sessionStorage.key(index) ?? "";
      if (name.startsWith(PREFIX)) this.#values.set(name.slice(PREFIX.length), sessionStorage.getItem(name) ?? "");
    }
  }

  /**
   * Return a value, or null.
   * @param {string} name
   */
  get(name) {
    return this.#values.get(name) ?? null;
  }

  /**
   * Store a value, or remove it (null). If the browser's storage is full, the tab still has it until it is reloaded.
   * @param {string} name
   * @param {string | null} value
   */
  set(name, value) {
    if (value === null) {
      this.#values.delete(name);
      sessionStorage.removeItem(PREFIX + name);
      return;
    }
    this.#values.set(name, value);
    try {
      sessionStorage.setItem(PREFIX + name, value);
      this.holds = true;
    } catch {
      sessionStorage.removeItem(PREFIX + name); // an older value must not return with a reload
      this.holds = false;
    }
  }

  /** Remove everything. */
  clear() {
    for (const name of [...this.#values.keys()]) this.set(name, null);
    this.holds = true;
  }
}
