/** The gateway's API over HTTP. It knows nothing of the page. */

import { ApiError } from "./errors.js";

/**
 * @typedef {object} Options
 * @property {string} [method]
 * @property {unknown} [json] a body, sent as JSON
 * @property {BodyInit} [body] a body, sent as it is
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {number | null} [seconds] until an answer must begin; null: any number. Default: 40 for GET, else null
 */

const GET_SECONDS = 40; // the gateway answers such a request within 29 seconds, also with a stream
/** Segments that a browser resolves, also when they are escaped. */
const DOT_SEGMENT = /(?:^|\/)(?:\.|%2e){1,2}(?:\/|$)/i;

/** A client of one token and one user. */
export class Client {
  #token;
  #user;
  #closing = new AbortController();

  /**
   * @param {string} token
   * @param {string} user the value of `SPASS-User-Id`
   * @param {string} base the gateway's address, with a final slash
   */
  constructor(token, user, base) {
    this.#token = token;
    this.#user = user;
    this.base = base;
  }

  /** Abort every request and stream. */
  close() {
    this.#closing.abort();
  }

  /** True after `close`. */
  get closed() {
    return this.#closing.signal.aborted;
  }

  /**
   * Send a request and return its answer, whatever its body is.
   * @param {string} path relative to the base, e.g. `a1/agents`
   * @param {Options} [options]
   * @returns {Promise<Response>}
   * @throws {ApiError} the gateway refused the request or did not answer
   */
  async send(path, { method = "GET", json, body, headers = {}, signal, seconds = method === "GET" ? GET_SECONDS : null } = {}) {
    // A name from the address, such as `..`, must not lead to another route.
    if (DOT_SEGMENT.test(path.split("?", 1)[0])) throw new ApiError(404, "route_not_found", "There is nothing of this name.");
    /** @type {Record<string, string>} */
    const content = json === undefined ? {} : { "Content-Type": "application/json" };
    const silence = new AbortController();
    const timer = seconds === null ? undefined : setTimeout(() => silence.abort(new DOMException("No answer.", "TimeoutError")), seconds * 1000);
    const signals = [silence.signal, this.#closing.signal, ...(signal ? [signal] : [])];
    let response;
    try {
      response = await fetch(this.base + path, {
        method,
        body: json === undefined ? (body ?? null) : JSON.stringify(json),
        headers: { Authorization: `Bearer ${this.#token}`, "SPASS-User-Id": this.#user, ...content, ...headers },
        signal: AbortSignal.any(signals),
        cache: "no-store",
        credentials: "omit",
        redirect: "follow",
      });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ApiError(0, "offline", "The gateway does not answer.");
    } finally {
      clearTimeout(timer);
    }
    if (!response.ok) throw await readError(response);
    return response;
  }

  /**
   * Send a request and return its answer, which must be JSON.
   * @param {string} path
   * @param {Options} [options]
   * @returns {Promise<any>}
   * @throws {ApiError}
   */
  async call(path, options) {
    const response = await this.send(path, options);
    try {
      return await response.json();
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      if (!isJson(response)) throw notJson(response);
      throw new ApiError(0, "offline", "The gateway's answer broke off.");
    }
  }

  /**
   * Yield the pages of a list, each as the whole answer.
   * @param {string} path without `cursor`
   * @returns {AsyncGenerator<any>}
   * @throws {ApiError}
   */
  async *pages(path) {
    for (let cursor = null; ; ) {
      const next = cursor === null ? path : `${path}${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}`;
      const page = await this.call(next);
      yield page;
      cursor = page.next_cursor ?? null;
      if (cursor === null) return;
    }
  }
}

/** @param {Response} response */
function isJson(response) {
  return (response.headers.get("Content-Type") ?? "").startsWith("application/json");
}

/** @param {Response} response */
export function notJson(response) {
  return new ApiError(response.ok ? 502 : response.status, "not_json", "The answer is not the gateway's.");
}

/** @param {Response} response */
async function readError(response) {
  const seconds = Number(response.headers.get("Retry-After"));
  const retryAfter = Number.isFinite(seconds) && seconds > 0 ? Math.ceil(seconds) : null;
  try {
    const { error, request_id: requestId } = await response.json();
    return new ApiError(response.status, String(error.code), String(error.message), {
      details: error.details ?? {},
      requestId: requestId ?? null,
      retryAfter,
    });
  } catch {
    return notJson(response);
  }
}
