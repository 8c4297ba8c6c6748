/** A value that is read from the gateway, and the states in which a view can be: loading, offline, not permitted, failed, empty. */

import { ApiError, problem } from "./errors.js";
import { html } from "lit-html";

/** @typedef {import("lit-html").TemplateResult | symbol | string} Content */

/** Follows the message about a value that did not arrive. */
export const RETRIES = "The page tries again automatically.";

const FIRST_DELAY = 1000;
const MAX_DELAY = 30_000;
const MAX_WAIT = 3_600_000; // a timer of more than 24 days would end at once

/**
 * A value that is loaded once, reloaded on demand, and tried again while the gateway does not answer.
 * @template T
 */
export class Resource {
  /** @type {T | null} */
  value = null;
  /** @type {unknown} */
  error = null;
  /** @type {number | undefined} */
  #timer;
  #failures = 0;
  #load;
  #changed;
  #run = 0;

  /**
   * @param {() => Promise<T>} load
   * @param {(error?: unknown) => void} changed is called when value or error has changed
   */
  constructor(load, changed) {
    this.#load = load;
    this.#changed = changed;
  }

  /** Load the value. While the gateway does not answer, try again. The earlier value stays until then. */
  async load() {
    clearTimeout(this.#timer);
    const run = ++this.#run;
    try {
      const value = await this.#load();
      if (run !== this.#run) return;
      this.value = value;
      this.error = null;
      this.#failures = 0;
    } catch (error) {
      if (run !== this.#run || (error instanceof DOMException && error.name === "AbortError")) return;
      this.error = error;
      if (error instanceof ApiError && error.passes) {
        const delay = error.retryAfter ? Math.min(error.retryAfter * 1000, MAX_WAIT) : Math.min(FIRST_DELAY * 2 ** this.#failures++, MAX_DELAY);
        this.#timer = setTimeout(() => this.load(), delay * (0.75 + Math.random() / 2));
      }
    }
    this.#changed(this.error ?? undefined);
  }

  /** Stop trying, and ignore an answer that is still to come. */
  close() {
    clearTimeout(this.#timer);
    this.#run++;
  }

  /**
   * Return what a view shows: the value, or the state in which it is.
   * @param {(value: T) => Content} ready
   * @param {{empty?: (value: T) => Content | null, loading?: string, isQuiet?: boolean}} [texts] `empty` returns what an empty value shows,
   *   else null. `isQuiet`: another place of the view shows the error
   * @returns {Content}
   */
  show(ready, { empty = () => null, loading = "Loading …", isQuiet = false } = {}) {
    const problem = isQuiet ? "" : firstFailure([this]);
    if (this.value === null) return this.error ? problem : html`<p class="state" role="status">${loading}</p>`;
    const content = empty(this.value) ?? ready(this.value);
    return problem ? html`${problem}${content}` : content;
  }
}

/**
 * Return one message about the values of a view that did not arrive: most often all of them fail for one reason. While the browser is
 * offline, the head of the page says so.
 * @param {{error: unknown, load: () => unknown}[]} values
 * @returns {Content}
 */
export function firstFailure(values) {
  const failed = values.filter(({ error }) => error);
  const error = failed[0]?.error;
  if (!error || (!navigator.onLine && error instanceof ApiError && error.status === 0)) return "";
  return failure(error, () => failed.forEach((value) => void value.load()), RETRIES);
}

/**
 * Return a message about an error, with what to do.
 * @param {unknown} error
 * @param {(() => void) | null} [retry]
 * @param {string} [offline] what the page does if the gateway does not answer
 * @param {Content} [more] what the user may do besides
 * @returns {Content}
 */
export function failure(error, retry = null, offline = "", more = "") {
  const { title, advice, details } = problem(error);
  const kind = error instanceof ApiError && error.status === 0 ? "offline" : error instanceof ApiError && error.status === 403 ? "forbidden" : "failed";
  return html`<div class="state ${kind}" role="alert">
    <p><strong>${title}</strong> ${advice} ${kind === "offline" ? offline : ""}</p>
    ${retry ? html`<button type="button" @click=${retry}>Try again</button>` : ""} ${more}
    ${details ? html`<details><summary>Details</summary><bdi>${details}</bdi></details>` : ""}
  </div>`;
}
