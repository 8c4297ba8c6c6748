/** One agent's open session: its history, the turn that runs in it, and the draft of the next message. */

import { ApiError } from "./errors.js";
import { TurnStream } from "./stream.js";
import { approvalsOf, TurnReducer, turnsOf } from "./turn.js";

/**
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {import("./app.js").App} App
 *
 * @typedef {object} Draft
 * @property {string} text
 * @property {{messageId: string, text: string} | null} returned the message that came back, which keeps its id if it is sent as it was
 *
 * @typedef {object} Agent as `GET /a1/agents/{name}` answers
 * @property {string} name
 * @property {string} description
 * @property {string | null} workspace
 * @property {string | null} [operator_id]
 */

const PAGE = 200; // messages
const MAX_TITLE = 80; // characters

export class Conversation {
  /** @type {any} metadata of the session, or null before the first message */
  session = null;
  /** @type {Turn[]} */
  turns = [];
  /** @type {Turn | null} the turn that runs */
  live = null;
  /** @type {TurnStream | null} */
  stream = null;
  /** @type {unknown} why the history could not be read, or the last message not be sent */
  error = null;
  loading = false;
  stopping = false;
  /** @type {Map<string, any>} */
  approvals = new Map();
  /** @type {Draft} */
  draft;
  /** @type {string | null} the workspace of a session to be created */
  workspace = null;
  /** @type {{cursor: string | null, messages: any[]}[]} */
  #pages = [];
  /** @type {Map<string, Turn>} the turns whose streams this tab has read, by key */
  #ended = new Map();
  #app;
  #closed = false;
  #sending = false;
  #opened;

  /**
   * @param {App} app
   * @param {Agent} agent as the list of agents has it
   * @param {string | null} sessionId null for a session that the first message creates
   */
  constructor(app, agent, sessionId) {
    this.#app = app;
    this.agent = agent;
    this.sessionId = sessionId;
    this.draft = JSON.parse(app.store.get(`draft:${agent.name}`) ?? "null") ?? { text: "", returned: null };
    this.#opened = this.#open();
    void this.#resume();
  }

  /** The path of the agent's sessions. */
  get #sessions() {
    return `a1/agents/${encodeURIComponent(this.agent.name)}/sessions`;
  }

  /** True while a message is being answered or sent. */
  get busy() {
    return this.#sending || (this.stream !== null && !this.stream.ended);
  }

  /** Read what the agent is, and the session. */
  async #open() {
    try {
      this.agent = await this.#app.client.call(`a1/agents/${encodeURIComponent(this.agent.name)}`);
    } catch (error) {
      this.#fail(error);
      this.#app.changed();
      return;
    }
    await this.reload();
  }

  /** Follow the turn that runs in the session, or the one that this tab was sending when it was reloaded. */
  async #resume() {
    const pending = JSON.parse(this.#app.store.get(`pending:${this.agent.name}`) ?? "null");
    await this.#opened;
    if (this.#closed || this.busy) return;
    const active = this.session?.active_turn;
    if (pending && pending.sessionId === this.sessionId) await this.#follow(pending.messageId, pending.text);
    else if (active) await this.#follow(active.message_id, null);
  }

  /** Read what has changed in the session. */
  async reload() {
    if (!this.sessionId) return;
    this.loading = true;
    this.#app.changed();
    try {
      // A turn that ends between the two reads is then in the history; the other order could miss it.
      this.session = await this.#app.client.call(`${this.#sessions}/${this.sessionId}`);
      await this.#readMessages();
      await this.#readApprovals();
      this.error = null;
    } catch (error) {
      this.#fail(error);
    }
    this.loading = false;
    this.#app.changed();
  }

  /** @param {string} text */
  setDraft(text) {
    this.draft = { ...this.draft, text };
    this.#storeDraft();
  }

  /**
   * Send a message. If it is refused, or its turn fails or is lost, it returns to the draft. It is never sent twice: a message that
   * returned and is sent as it was keeps its id, and under one id the gateway runs one turn.
   * @param {string} text
   */
  async send(text) {
    if (this.busy || !text.trim()) return;
    const { returned } = this.draft;
    const messageId = returned?.text === text ? returned.messageId : crypto.randomUUID();
    this.draft = { text: "", returned: null };
    this.#storeDraft();
    this.#sending = true;
    this.error = null;
    this.#begin(messageId, text);
    this.#storePending({ messageId, sessionId: this.sessionId, text });
    try {
      await this.#opened;
      const session = this.agent.operator_id ? {} : { session_id: await this.#ensureSession(messageId, text) };
      this.#storePending({ messageId, sessionId: this.sessionId, text });
      const body = { message_id: messageId, messages: [{ role: "user", content: text }], ...session };
      await this.stream?.send(body);
      await this.#finish(text);
    } catch (error) {
      this.#return(messageId, text, error);
    }
    this.#sending = false;
    this.#app.changed();
  }

  /** Stop the turn. What it has so far is kept. */
  async stop() {
    if (!this.stream || this.stream.ended) return;
    this.stopping = true;
    this.#app.changed();
    try {
      await this.stream.stop();
    } catch (error) {
      this.stopping = false;
      this.#fail(error);
    }
  }

  /** Read what became of the approvals that wait in this session. */
  async refreshApprovals() {
    if (![...this.approvals.values()].some(({ status }) => status === "pending")) return;
    try {
      await this.#readApprovals();
    } catch (error) {
      this.#fail(error);
    }
    this.#app.changed();
  }

  /**
   * Take over what the gateway says of an approval. One that has ended does not wait again, in whatever order the answers arrive.
   * @param {any} approval
   */
  keepApproval(approval) {
    if ((this.approvals.get(approval.id)?.status ?? "pending") === "pending") this.approvals.set(approval.id, approval);
  }

  /** Stop reading. The turn goes on. */
  close() {
    this.#closed = true;
    this.stream?.close();
  }

  /**
   * Return the id of the session for a new message, and create it if there is none.
   * @param {string} messageId also names the request that creates it, so a repeated one creates no second session
   * @param {string} text
   */
  async #ensureSession(messageId, text) {
    if (this.sessionId) return this.sessionId;
    const line = text.trim().split("\n", 1)[0];
    const title = line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
    const json = { title, ...(this.workspace ? { workspace: this.workspace } : {}) };
    this.session = await this.#app.client.call(this.#sessions, { method: "POST", json, headers: { "Idempotency-Key": `page-${messageId}` } });
    this.#move(this.session.id);
    return this.session.id;
  }

  /**
   * @param {string} messageId
   * @param {string | null} text what was asked, if this tab knows it
   */
  async #follow(messageId, text) {
    this.#begin(messageId, text);
    try {
      await this.stream?.follow();
      await this.#finish(text);
    } catch (error) {
      this.#fail(error);
      this.#clear();
    }
    this.#app.changed();
  }

  /**
   * @param {string} messageId
   * @param {string | null} text
   */
  #begin(messageId, text) {
    const reducer = new TurnReducer(messageId, text);
    this.stopping = false;
    this.live = reducer.turn;
    this.stream = new TurnStream(this.#app.client, this.agent.name, messageId, () => {
      this.live = reducer.read(this.stream?.events ?? []);
      if (this.live.sessionId && this.live.sessionId !== this.sessionId) this.#move(this.live.sessionId);
      this.#app.changed();
    });
    this.#app.changed();
  }

  /**
   * Take over what the ended stream says.
   * @param {string | null} text
   */
  async #finish(text) {
    const { stream, live } = this;
    if (!stream || !live || this.#closed) return;
    if (stream.status === "done") {
      this.#ended.set(live.key, live);
      await this.reload();
      if (this.error === null) this.#clear();
      return;
    }
    const known = stream.status === "gone" && (text === null || this.turns.some((turn) => turn.question === text));
    if (text !== null && !known) {
      const { code, message } = live.error ?? { code: "stream_not_found", message: "It is not known whether the message arrived." };
      this.#return(stream.messageId, text, new ApiError(409, code, message));
    } else {
      this.#clear();
      await this.reload();
    }
  }

  /**
   * Put a message back into the draft, before what was typed meanwhile.
   * @param {string} messageId
   * @param {string} text
   * @param {unknown} error
   */
  #return(messageId, text, error) {
    if (this.#closed) return;
    const typed = this.draft.text.trim();
    this.draft = { text: typed ? `${text}\n\n${typed}` : text, returned: { messageId, text } };
    this.#storeDraft();
    this.#clear();
    this.#fail(error);
  }

  #clear() {
    this.live = null;
    this.stream = null;
    this.stopping = false;
    this.#storePending(null);
  }

  /** @param {string} sessionId */
  #move(sessionId) {
    this.sessionId = sessionId;
    this.#pages = [];
    this.#app.store.set(`open:${this.agent.name}`, sessionId);
  }

  async #readMessages() {
    const { client } = this.#app;
    const kept = this.#pages.slice(0, -1);
    for (let cursor = this.#pages.at(-1)?.cursor ?? null; ; ) {
      const after = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
      const page = await client.call(`${this.#sessions}/${this.sessionId}/messages?limit=${PAGE}${after}`);
      kept.push({ cursor, messages: page.messages });
      if (!page.next_cursor) break;
      cursor = page.next_cursor;
    }
    this.#pages = kept;
    this.turns = turnsOf(kept.flatMap((page) => page.messages));
    for (const turn of this.turns) this.#recall(turn);
  }

  /**
   * Give a recorded turn what only its stream had: the key under which it is shown, and the calls that delegates made.
   * @param {Turn} recorded
   */
  #recall(recorded) {
    for (const live of this.#ended.values()) {
      if (live.answerId !== recorded.answerId) continue;
      recorded.key = live.key;
      const calls = new Map(live.steps.flatMap((step) => step.calls.map((call) => [call.id, call.calls])));
      for (const call of recorded.steps.flatMap((step) => step.calls)) call.calls = calls.get(call.id) ?? [];
    }
  }

  /** Read the approvals of this session, if a turn names one. */
  async #readApprovals() {
    if (!this.turns.some((turn) => approvalsOf(turn).length)) return;
    for await (const page of this.#app.client.pages(`a1/approvals?session_id=${this.sessionId}`)) {
      for (const approval of page.approvals) this.keepApproval(approval);
    }
  }

  /** @param {unknown} error */
  #fail(error) {
    if (this.#closed || (error instanceof DOMException && error.name === "AbortError")) return;
    if (!this.#app.refused(error)) this.error = error;
  }

  #storeDraft() {
    const empty = !this.draft.text && !this.draft.returned;
    this.#app.store.set(`draft:${this.agent.name}`, empty ? null : JSON.stringify(this.draft));
  }

  /** @param {{messageId: string, sessionId: string | null, text: string} | null} pending */
  #storePending(pending) {
    this.#app.store.set(`pending:${this.agent.name}`, pending && JSON.stringify(pending));
  }
}
