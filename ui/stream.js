/**
 * The stream of one turn, read to its end over as many connections as that takes.
 *
 * The events are kept in one list, in the order of their ids, none missing and none twice. Whatever the page shows of a turn is
 * computed from that list, so the first reading, a reload and a second tab are the same path.
 */

import { ApiError } from "./errors.js";
import { notJson } from "./client.js";
import { readEvents } from "./sse.js";

/**
 * @typedef {import("./client.js").Client} Client
 * @typedef {{type: string, [field: string]: any}} TurnEvent an event of the gateway, as docs/streaming.md lists them
 * @typedef {"connecting" | "streaming" | "reconnecting" | "done" | "failed" | "lost" | "gone"} Status
 *   `gone`: the stream does not exist (any more)
 */

const FIRST_DELAY = 500; // ms
const MAX_DELAY = 15_000;
const MAX_SILENCE = 40_000; // the gateway sends a comment after 15 s
const POST_SECONDS = 60; // until the stream begins. A turn begins once, so the request may be repeated
const MAX_WAIT = 3_600_000; // ms. A timer of more than 24 days would end at once
const MAX_POSTS_WITHOUT_GATEWAY = 3;
const ENDS = new Set(["done", "failed", "lost", "gone"]);

export class TurnStream {
  /** @type {TurnEvent[]} */
  events = [];
  /** @type {Status} */
  status = "connecting";
  /** Whether the gateway is known to have the message. */
  isReceived = true;
  /** Events that could not be read. */
  skipped = 0;
  /** @type {ApiError | null} why the last connection failed */
  error = null;
  #attempt = 0;
  #number = 0;
  #failures = 0;
  #hasTried = false;
  #closing = new AbortController();
  #client;
  #path;
  #changed;

  /**
   * @param {Client} client
   * @param {string} agent
   * @param {string} messageId
   * @param {() => void} changed is called after each change
   */
  constructor(client, agent, messageId, changed) {
    this.#client = client;
    this.#path = `c1/agents/${encodeURIComponent(agent)}/chat`;
    this.#changed = changed;
    this.messageId = messageId;
  }

  /** True if nothing more will come. */
  get ended() {
    return ENDS.has(this.status);
  }

  /**
   * Start the turn and read its stream to the end. The same request is repeated until there is an answer: the gateway runs the turn
   * once, whatever arrives.
   * @param {Record<string, unknown>} body
   * @throws {ApiError} the gateway refused the message; nothing has begun
   */
  async send(body) {
    let strange = 0;
    this.#hasTried = true;
    this.isReceived = false;
    for (;;) {
      try {
        const response = await this.#client.send(this.#path, { method: "POST", json: body, signal: this.#closing.signal, seconds: POST_SECONDS });
        await this.#read(response);
        break;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        const unknown = error.status === 0 || (error.code === "not_json" && error.status >= 500);
        if (this.#number > 0) break;
        if (!unknown || (error.status !== 0 && ++strange >= MAX_POSTS_WITHOUT_GATEWAY)) throw error;
        await this.#wait(error);
      }
    }
    await this.follow();
  }

  /** Read the stream of a turn that has begun, from the last event read, to its end. */
  async follow() {
    while (!this.ended) {
      if (this.#hasTried) await this.#wait(this.error);
      this.#hasTried = true;
      try {
        /** @type {Record<string, string>} */
        const headers = this.#number ? { "Last-Event-ID": `${this.#attempt}-${this.#number}` } : {};
        const path = `${this.#path}/${encodeURIComponent(this.messageId)}`;
        const response = await this.#client.send(path, { headers, signal: this.#closing.signal });
        if (response.status === 204) this.#end("gone"); // the last event was read before; it was not an end that we know
        else await this.#read(response);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        this.error = error;
        if (error.status === 404) this.#end("gone");
        else if (!error.passes && error.code !== "not_json") throw error;
      }
    }
  }

  /**
   * Ask the gateway to stop the turn. The end of the stream then says so.
   * @throws {ApiError}
   */
  async stop() {
    await this.#client.call(`${this.#path}/${encodeURIComponent(this.messageId)}`, { method: "DELETE" });
  }

  /** Stop reading. The turn goes on. */
  close() {
    this.#closing.abort();
  }

  /** @param {Response} response */
  async #read(response) {
    if (!response.body || !(response.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) throw notJson(response);
    this.isReceived = true;
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), MAX_SILENCE);
    const body = response.body.pipeThrough(new TransformStream(), { signal: silence.signal });
    try {
      for await (const event of readEvents(body)) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), MAX_SILENCE);
        this.#resume();
        if (event && !this.#take(event)) return;
      }
    } catch (error) {
      if (this.#closing.signal.aborted || this.#client.closed) throw error;
      this.error = new ApiError(0, "offline", "The connection broke off.");
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Add an event to the list. Return false if this connection must be left: the stream has ended, or an event is missing.
   * @param {import("./sse.js").ServerEvent} event
   */
  #take({ id, data }) {
    const event = parse(data);
    if (id !== null) {
      const [attempt, number] = id.split("-").map(Number);
      if (!Number.isInteger(attempt) || !Number.isInteger(number)) return this.#skip();
      if (attempt < this.#attempt || (attempt === this.#attempt && number <= this.#number)) return true; // read before
      if (attempt > this.#attempt) {
        this.events = [];
        this.#attempt = attempt;
        this.#number = 0;
      }
      if (number !== this.#number + 1) return false;
      this.#number = number;
    }
    this.#failures = 0;
    if (!event) return this.#skip();
    this.error = null;
    this.status = "streaming";
    this.events.push(event);
    if (event.type === "done") return this.#end("done");
    if (event.type === "error") return this.#end(event.error?.code === "turn_lost" ? "lost" : "failed");
    this.#changed();
    return true;
  }

  /** Note that the connection is there, although the agent may be silent. */
  #resume() {
    if (this.status !== "reconnecting") return;
    this.status = "streaming";
    this.error = null;
    this.#changed();
  }

  #skip() {
    this.skipped++;
    this.#changed();
    return true;
  }

  /** @param {Status} status */
  #end(status) {
    this.status = status;
    this.#changed();
    return false;
  }

  /**
   * Wait before the next connection: longer after each failure, shorter if the browser is online again.
   * @param {ApiError | null} error
   */
  async #wait(error) {
    this.status = "reconnecting";
    this.error = error;
    this.#changed();
    const backoff = Math.min(FIRST_DELAY * 2 ** this.#failures++, MAX_DELAY) * (0.5 + Math.random());
    const delay = error?.retryAfter ? Math.min(error.retryAfter * 1000, MAX_WAIT) : backoff;
    const over = new AbortController(); // removes the listeners
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, delay);
      addEventListener("online", resolve, { signal: over.signal });
      this.#closing.signal.addEventListener("abort", resolve, { signal: over.signal });
      over.signal.addEventListener("abort", () => clearTimeout(timer));
    });
    over.abort();
    this.#closing.signal.throwIfAborted();
  }
}

/**
 * @param {string} data
 * @returns {TurnEvent | null}
 */
function parse(data) {
  try {
    const event = JSON.parse(data);
    return event && typeof event === "object" && typeof event.type === "string" ? event : null;
  } catch {
    return null;
  }
}
