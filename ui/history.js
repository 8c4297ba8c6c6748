/** The record that the gateway has of a session: its metadata, its turns, and what became of their approvals. */

import { approvalsOf, turnsOf } from "./turn.js";

/**
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {import("./turn.js").Call} Call
 */

const PAGE = 200; // messages

export class History {
  /** @type {any} metadata of the session, or null before the first message */
  session = null;
  /** @type {Turn[]} oldest first */
  turns = [];
  /** @type {Map<string, any>} approvals by id, as the gateway answered last */
  approvals = new Map();
  /** Grows when approvals have changed. */
  revision = 0;
  /** @type {{cursor: string | null, messages: any[]}[]} */
  #pages = [];
  /** @type {Map<string | null, {key: string, finishReason: string | null, calls: Map<string, Call[]>}>} what the messages lack, by the answer's id */
  #streamed = new Map();
  #client;

  /** @param {import("./client.js").Client} client */
  constructor(client) {
    this.#client = client;
  }

  /**
   * Read what has changed in a session.
   * @param {string} path of the agent's sessions
   * @param {string} sessionId
   * @throws {import("./errors.js").ApiError}
   */
  async read(path, sessionId) {
    // A turn that ends between the two reads is then in the messages; the other order could miss it.
    const session = await this.#client.call(`${path}/${encodeURIComponent(sessionId)}`);
    const before = this.session;
    if (before?.id !== session.id || before.updated_at !== session.updated_at || before.message_count !== session.message_count) {
      await this.#readMessages(`${path}/${encodeURIComponent(sessionId)}/messages`, before?.id === session.id);
    }
    this.session = session;
    await this.#readApprovals();
  }

  /**
   * Take over what the gateway says of an approval. One that has ended does not wait again, in whatever order the answers arrive.
   * @param {any} approval
   */
  decide(approval) {
    const known = this.approvals.get(approval.id)?.status;
    if (known === approval.status || (known && known !== "pending")) return;
    this.approvals.set(approval.id, approval);
    this.revision++;
  }

  /** Read what became of the approvals, if one waits. */
  async #readApprovals() {
    const ids = this.turns.flatMap(approvalsOf);
    if (ids.every((id) => (this.approvals.get(id)?.status ?? "pending") !== "pending")) return;
    for await (const page of this.#client.pages(`a1/approvals?session_id=${encodeURIComponent(this.session.id)}`)) {
      for (const approval of page.approvals) this.decide(approval);
    }
  }

  /**
   * Keep what only a turn's stream has, until the history names the turn: its key, and the calls that delegates made.
   * @param {Turn} turn
   */
  keep({ key, answerId, finishReason, steps }) {
    const calls = new Map(steps.flatMap((step) => step.calls.map((call) => [call.id, call.calls])));
    this.#streamed.set(answerId, { key, finishReason, calls });
  }

  /**
   * Return true if a message was recorded after a turn.
   * @param {string} question
   * @param {string | null} after the id of that turn's answer. An unknown one stands for the beginning
   */
  holds(question, after) {
    const start = this.turns.findIndex((turn) => turn.answerId === after) + 1;
    return this.turns.slice(start).some((turn) => turn.question === question);
  }

  /**
   * @param {string} path
   * @param {boolean} same the pages that were read before are of this session
   */
  async #readMessages(path, same) {
    const pages = same ? this.#pages.slice(0, -1) : [];
    for (let cursor = (same && this.#pages.at(-1)?.cursor) || null; ; ) {
      const page = await this.#client.call(`${path}?limit=${PAGE}${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
      pages.push({ cursor, messages: page.messages });
      if (!page.next_cursor) break;
      cursor = page.next_cursor;
    }
    this.#pages = pages;
    this.turns = turnsOf(pages.flatMap((page) => page.messages));
    for (const turn of this.turns) this.#recall(turn);
  }

  /** @param {Turn} recorded */
  #recall(recorded) {
    const streamed = this.#streamed.get(recorded.answerId);
    if (!streamed) return;
    recorded.key = streamed.key;
    recorded.finishReason = streamed.finishReason;
    for (const call of recorded.steps.flatMap((step) => step.calls)) call.calls = streamed.calls.get(call.id) ?? [];
  }
}
