/** One agent's open session: its history, and the turn that runs in it. */

import { ApiError } from "./errors.js";
import { shorten } from "./format.js";
import { History } from "./history.js";
import { Resource } from "./resource.js";
import { TurnStream } from "./stream.js";
import { TurnReducer } from "./turn.js";

/**
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {import("./draft.js").Sent} Sent
 * @typedef {import("./app.js").App} App
 *
 * @typedef {object} Agent as `GET /a1/agents/{name}` answers; the list of agents has some of it
 * @property {string} name
 * @property {string} description
 * @property {string} [model]
 * @property {boolean} [stand_in] the laptop's offline stand-in answers in place of the model
 * @property {boolean} [usable] absent: it is
 * @property {string | null} [unusable_reason]
 * @property {string | null} [workspace]
 * @property {string | null} [operator_id]
 */

const MAX_TITLE = 80; // characters

export class Conversation {
  /** @type {Turn | null} the turn that runs, or that has ended and is not read from the history yet */
  live = null;
  /** @type {TurnStream | null} its stream */
  stream = null;
  /** @type {unknown} why the last message was not sent, or not answered */
  error = null;
  stopping = false;
  /** @type {string | null} the workspace of a session to be created */
  workspace = null;
  /** @type {Sent | null} what this tab sent and `stream` answers */
  #sent = null;
  #app;
  #closed = false;
  #sending = false;
  #described = false;
  #ended = ""; // id of the last message whose stream has ended: the session may still name it for a while

  /**
   * @param {App} app
   * @param {Agent} agent as the list of agents has it
   * @param {string | null} sessionId null for a session that the first message creates
   * @param {import("./draft.js").Draft} draft the agent's
   */
  constructor(app, agent, sessionId, draft) {
    this.#app = app;
    this.agent = agent;
    this.sessionId = sessionId;
    this.draft = draft;
    this.history = new History(app.client);
    this.record = new Resource(
      () => this.#read(),
      (error) => this.#settle(error),
    );
    void this.record.load();
  }

  get session() {
    return this.history.session;
  }

  get turns() {
    return this.history.turns;
  }

  /** True while a message is sent or answered, and until its answer is read from the history. */
  get busy() {
    return this.#sending || this.stream !== null;
  }

  /** Look whether another tab or device has changed the session. */
  refresh() {
    if (this.sessionId && !this.busy && this.record.value && !this.record.error) void this.record.load();
  }

  /**
   * Send a message. If it is refused, or its turn fails or is lost, it returns to the draft.
   * @param {string} text
   */
  async send(text) {
    if (this.busy || !text.trim()) return;
    const { messageId, session: sentTo } = this.draft.take(text, this.sessionId, this.workspace);
    const sent = { messageId, session: sentTo, place: this.sessionId, text, after: this.turns.at(-1)?.answerId ?? null };
    this.#sending = true;
    this.#remember(sent);
    this.#begin(messageId, text);
    try {
      await this.#describe();
      const session = sentTo ?? this.#sessionOf(text);
      this.#remember({ ...sent, session });
      await this.stream?.send({ message_id: messageId, messages: [{ role: "user", content: text }], ...session });
      this.#end();
    } catch (error) {
      this.#giveBack(error);
    }
    this.#sending = false;
    this.#app.changed();
  }

  /**
   * Read the stream of a turn to its end.
   * @param {string} messageId
   * @param {string | null} [text] what was asked, if this tab knows it
   */
  async follow(messageId, text = null) {
    if (this.busy) return;
    this.#begin(messageId, text);
    try {
      await this.stream?.follow();
      this.#end();
    } catch (error) {
      this.#giveBack(error);
    }
    this.#app.changed();
  }

  /**
   * Stop a turn, which this tab need not follow. What it has so far is kept.
   * @param {string} [messageId] default: that of the turn that is shown
   */
  async stop(messageId) {
    if (messageId && !this.busy) void this.follow(messageId);
    if (!this.stream || this.stream.ended) return;
    this.stopping = true;
    this.#app.changed();
    try {
      await this.stream.stop();
    } catch (error) {
      if (error instanceof ApiError && error.code === "stream_not_found") return; // it has not begun: its first event stops it
      this.stopping = false;
      this.#fail(error);
      this.#app.changed();
    }
  }

  /** Stop reading. The turn goes on. */
  close() {
    this.#closed = true;
    this.record.close();
    this.stream?.close();
  }

  /** The path of the agent's sessions. */
  get #sessions() {
    return `a1/agents/${encodeURIComponent(this.agent.name)}/sessions`;
  }

  async #read() {
    await this.#describe();
    if (this.agent.operator_id && !this.sessionId) await this.#findSession(this.agent.operator_id);
    else if (this.sessionId) await this.history.read(this.#sessions, this.sessionId);
    return true;
  }

  /** Read what the agent is, once. */
  async #describe() {
    if (this.#described) return;
    this.agent = await this.#app.client.call(`a1/agents/${encodeURIComponent(this.agent.name)}`);
    this.#described = true;
  }

  /**
   * Open the one session of an operator, which exists from its first run on. If it was deleted, the next run begins another.
   * @param {string} operatorId
   */
  async #findSession(operatorId) {
    try {
      const operator = await this.#app.client.call(`v1/operators/${encodeURIComponent(operatorId)}`);
      if (!operator.session_id) return;
      await this.history.read(this.#sessions, operator.session_id);
      this.sessionId = operator.session_id;
    } catch (error) {
      if (!(error instanceof ApiError && ["operator_not_found", "session_not_found"].includes(error.code))) throw error;
    }
  }

  /**
   * After a reading of the history: let it take the place of the turn that ended, or follow the one that runs.
   * @param {unknown} error
   */
  #settle(error) {
    if ((this.#closed || this.#app.client.closed) || (error && this.#app.refused(error))) return;
    const passes = error instanceof ApiError && error.passes;
    if (!passes && this.stream?.ended) this.#replace();
    else if (!error && !this.busy) this.#resume();
    this.#app.changed();
  }

  #resume() {
    const sent = this.draft.sentTo(this.sessionId);
    const active = this.session?.active_turn;
    if (sent) {
      this.#sent = sent;
      void this.follow(sent.messageId, sent.text);
    } else if (active && active.message_id !== this.#ended) void this.follow(active.message_id);
  }

  /** Show the history in the place of the turn that has ended. A message that it does not hold returns to the draft. */
  #replace() {
    const sent = this.#sent;
    const isLost = this.stream?.status === "gone" && sent && (this.record.error || !this.history.holds(sent.text, sent.after));
    if (isLost) this.#giveBack(this.record.error ?? new ApiError(404, "message_unknown", "The message did not arrive, or its answer was not recorded."));
    else this.#clear();
  }

  /** Take over what the stream that has ended says. */
  #end() {
    const { stream, live } = this;
    if (!stream || !live || this.#closed || this.#app.client.closed) return;
    this.#ended = stream.messageId;
    if (stream.status === "failed" || stream.status === "lost") {
      const { code, message } = live.error ?? { code: "internal_error", message: "The turn failed." };
      const error = new ApiError(stream.status === "lost" ? 503 : 502, code, message);
      this.#giveBack(error);
    } else if (stream.status === "done") this.history.keep(live);
    void this.record.load();
  }

  /**
   * Return what a message says of its session. Without an id its turn creates one, so a refused message leaves none.
   * @param {string} text
   * @returns {import("./draft.js").SessionOf}
   */
  #sessionOf(text) {
    if (this.agent.operator_id) return {};
    if (this.sessionId) return { session_id: this.sessionId };
    return { title: shorten(text.trim().split("\n", 1)[0], MAX_TITLE), ...(this.workspace ? { workspace: this.workspace } : {}) };
  }

  /**
   * @param {string} messageId
   * @param {string | null} text
   */
  #begin(messageId, text) {
    const reducer = new TurnReducer(messageId, text);
    this.error = null;
    this.stopping = false;
    this.live = reducer.turn;
    const stream = new TurnStream(this.#app.client, this.agent.name, messageId, () => {
      if (this.stream !== stream) return;
      const isFirst = stream.events.length === 1;
      this.live = reducer.read(stream.events);
      if (this.live.sessionId) this.#move(this.live.sessionId);
      if (this.stopping && isFirst) void this.stop();
      this.#app.changed();
    });
    this.stream = stream;
    this.#app.changed();
  }

  /** @param {Sent} sent */
  #remember(sent) {
    this.#sent = sent;
    this.draft.remember(sent);
  }

  /**
   * End without an answer, and put the message back into the draft if this tab has sent it.
   * @param {unknown} error why
   */
  #giveBack(error) {
    if (this.#closed || this.#app.client.closed) return;
    if (this.#sent) this.draft.giveBack(this.#sent);
    this.#clear();
    this.#fail(error);
  }

  #clear() {
    if (this.#sent) this.draft.forget(this.#sent.messageId);
    this.#sent = null;
    this.live = null;
    this.stream = null;
    this.stopping = false;
  }

  /**
   * Follow the turn into the session in which it runs: a compaction may move it.
   * @param {string} sessionId
   */
  #move(sessionId) {
    this.sessionId = sessionId;
    if (this.#sent && this.#sent.place !== sessionId) this.#remember({ ...this.#sent, place: sessionId });
  }

  /** @param {unknown} error */
  #fail(error) {
    if ((this.#closed || this.#app.client.closed) || (error instanceof DOMException && error.name === "AbortError")) return;
    if (!this.#app.refused(error)) this.error = error;
  }
}
