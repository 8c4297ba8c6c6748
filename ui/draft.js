/** The part of an agent that the tab keeps over a reload: the draft of the next message, and the messages that are being answered. */

/**
 * @typedef {object} SessionOf what the body of a message says of its session: its id, or what to create; nothing of an operator's
 * @property {string} [session_id]
 * @property {string} [title]
 * @property {string} [workspace]
 *
 * @typedef {object} Sent a message whose end this tab has not seen
 * @property {string} messageId
 * @property {SessionOf | null} session null before it is sent
 * @property {string | null} place the session in which its turn runs: that one, the created one, or a successor
 * @property {string} text
 * @property {string | null} after the id of the answer before it
 */

export class Draft {
  text = "";
  /** @type {{messageId: string, session: SessionOf | null, place: string | null, text: string} | null} the message that came back */
  returned = null;
  /** @type {Sent[]} */
  #sent = [];
  #app;
  #agent;

  /**
   * @param {import("./app.js").App} app
   * @param {string} agent
   */
  constructor(app, agent) {
    this.#app = app;
    this.#agent = agent;
    ({ text: this.text, returned: this.returned } = app.store.json(`draft:${agent}`, isDraft, { text: "", returned: null }));
    this.#sent = app.store.json(`sent:${agent}`, (value) => Array.isArray(value) && value.every(isMessage), []);
  }

  /** @param {string} text */
  write(text) {
    this.text = text;
    this.#store();
  }

  /**
   * Take a message out of the draft, and return its id, and its session if it was sent before. A message that came back keeps both
   * if it is sent as it was: with one id and one body the gateway runs one turn.
   * @param {string} text
   * @param {string | null} place the open session
   * @param {string | null} workspace of a session to be created
   * @returns {{messageId: string, session: SessionOf | null}}
   */
  take(text, place, workspace) {
    const { returned } = this;
    if (text === this.text) {
      this.text = "";
      this.returned = null;
      this.#store();
    }
    const isSame = returned?.text === text && returned.place === place && (place !== null || (returned.session?.workspace ?? null) === workspace);
    return returned && isSame ? returned : { messageId: crypto.randomUUID(), session: null };
  }

  /**
   * Put a message back, before what was typed meanwhile.
   * @param {Sent} message
   */
  giveBack({ messageId, session, place, text }) {
    const typed = this.text.trim();
    this.text = typed && typed !== text.trim() ? `${text}\n\n${typed}` : text;
    this.returned = { messageId, session, place, text };
    this.#store();
  }

  /**
   * Return the message that this tab was sending when it was reloaded, or null.
   * @param {string | null} place
   */
  sentTo(place) {
    return this.#sent.find((one) => one.place === place) ?? null;
  }

  /** @param {Sent} message */
  remember(message) {
    this.#sent = [...this.#sent.filter((one) => one.messageId !== message.messageId), message];
    this.#store();
  }

  /** @param {string} messageId */
  forget(messageId) {
    this.#sent = this.#sent.filter((one) => one.messageId !== messageId);
    this.#store();
  }

  #store() {
    if (this.#app.client.closed) return; // the user has signed out, and nothing remains
    const { text, returned } = this;
    this.#app.store.set(`draft:${this.#agent}`, text || returned ? JSON.stringify({ text, returned }) : null);
    this.#app.store.set(`sent:${this.#agent}`, this.#sent.length ? JSON.stringify(this.#sent) : null);
  }
}

/**
 * True if a stored value is a draft: an older page, or a person, may have stored something else.
 * @param {any} value
 */
function isDraft(value) {
  return typeof value?.text === "string" && (value.returned === null || isMessage(value.returned));
}

/** @param {any} value */
function isMessage(value) {
  return typeof value?.messageId === "string" && typeof value.text === "string" && typeof value.session === "object";
}
