/** The approvals that this tab has seen, and what the user does with each: wherever one is shown, it is the same. */

import { Changes } from "./changes.js";
import { ApiError } from "./errors.js";

/** @typedef {"approve" | "deny"} Kind */

const ENCODER = new TextEncoder();
const MAX_REASON = 4096; // bytes
const READS = [0, 1, 1, 3, 6]; // seconds before each attempt to read what came of a decision
const MAX_PENDING = 3; // answers that it still waits

/** An approval, and the decision that the user is making. */
export class Decision {
  /** The reason that the user has typed. */
  reason = "";
  /** @type {Kind | "read" | null} what is on its way: a decision, or reading what came of one */
  busy = null;
  /** @type {unknown} */
  error = null;
  /** @type {string | null} what the user should know besides the outcome */
  note = null;
  /** @type {Set<() => void>} */
  #watchers = new Set();
  /** @type {(approval: any) => void} */
  #decided = () => {};
  /** @type {Changes | null} */
  #changes = null;
  #app;

  /**
   * @param {import("./app.js").App} app
   * @param {any} approval as `GET /a1/approvals/{id}` answers
   */
  constructor(app, approval) {
    this.#app = app;
    this.approval = approval;
  }

  /** True while the user can decide. */
  get isOpen() {
    return this.approval.status === "pending" && this.busy === null;
  }

  /** What the call would change, as far as the user has seen it. */
  get changes() {
    return (this.#changes ??= new Changes(this.#app.client, this.approval));
  }

  /** Show more of what the call would change. */
  async readMore() {
    if (this.changes.isReading) return;
    this.error = null;
    const reading = this.changes.more();
    this.#changed();
    try {
      await reading;
      this.#changed();
    } catch (error) {
      if (error instanceof ApiError && error.code === "approval_decided") await this.#read("It was decided elsewhere.");
      else this.#fail(error);
    }
  }

  /** True if the reason is longer than the gateway takes. */
  get isTooLong() {
    return ENCODER.encode(this.reason).length > MAX_REASON;
  }

  /**
   * Take over what the gateway answered. An approval that has ended does not wait again.
   * @param {any} approval
   */
  take(approval) {
    const waits = this.approval.status === "pending";
    if (approval === this.approval || (!waits && approval.status === "pending")) return;
    this.approval = approval;
    if (waits && approval.status !== "pending") this.#changed();
  }

  /**
   * Call `watcher` with every change. Return a function that ends it.
   * @param {() => void} watcher
   */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  /** @param {string} reason */
  setReason(reason) {
    const wasTooLong = this.isTooLong;
    this.reason = reason;
    if (wasTooLong !== this.isTooLong) this.#changed();
  }

  /** @param {(approval: any) => void} decided is called with the approval after a decision */
  tell(decided) {
    this.#decided = decided;
  }

  /**
   * Decide, once: nothing happens while another decision is on its way or after it.
   * @param {Kind} kind
   */
  async decide(kind) {
    if (!this.isOpen || this.isTooLong || (kind === "approve" && !this.changes.isRead)) return;
    const reason = this.reason.trim();
    this.#begin(kind);
    try {
      const { seen } = this.changes;
      const json = { decision: kind, ...(reason ? { reason } : {}), ...(kind === "approve" && seen ? { seen } : {}) };
      this.#end(await this.#app.client.call(this.#path, { method: "POST", json }));
    } catch (error) {
      if (error instanceof ApiError && error.code === "approval_decided") await this.#read("It was decided elsewhere.");
      else if (error instanceof ApiError && (error.status === 0 || error.status >= 500)) await this.#read(null, error);
      else this.#fail(error);
    }
  }

  /** Read the approval again. */
  async read() {
    if (this.busy === null) await this.#read(null);
  }

  get #path() {
    return `a1/approvals/${encodeURIComponent(this.approval.id)}`;
  }

  /**
   * Read what came of the approval. Its answer may have been lost while the gateway still executes it, so a few reads follow.
   * @param {string | null} note shown if it has ended
   * @param {unknown} [lost] why the answer to a decision is missing
   */
  async #read(note, lost) {
    this.#begin("read");
    let error = lost;
    let pending = 0;
    for (const seconds of lost ? READS : [0]) {
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
      try {
        const approval = await this.#app.client.call(this.#path);
        if (approval.status !== "pending") return this.#end(approval, note);
        error = null;
        if (++pending === MAX_PENDING) break;
      } catch (failed) {
        error = failed;
        if (!(failed instanceof ApiError && failed.passes)) break;
      }
    }
    if (error) return this.#fail(error);
    this.#end(this.approval, lost ? "The answer was lost, and the call still waits. You can decide again: it is executed once at most." : null);
  }

  /** @param {Kind | "read"} busy */
  #begin(busy) {
    this.busy = busy;
    this.error = this.note = null;
    this.#changed();
  }

  /**
   * @param {any} approval
   * @param {string | null} [note]
   */
  #end(approval, note = null) {
    this.busy = null;
    this.note = note;
    this.approval = approval;
    this.#changed();
    this.#decided(approval);
    this.#app.changed();
  }

  /** @param {unknown} error */
  #fail(error) {
    this.busy = null;
    const closed = error instanceof DOMException && error.name === "AbortError";
    if (!closed && !this.#app.refused(error)) this.error = error;
    if (error instanceof ApiError && error.code === "approval_not_found") this.approval = { ...this.approval, status: "deleted" };
    this.#changed();
    this.#app.changed();
  }

  #changed() {
    for (const watcher of this.#watchers) watcher();
  }
}

/** @type {WeakMap<import("./client.js").Client, Map<string, Decision>>} */
const known = new WeakMap();

/**
 * Return the decision about an approval.
 * @param {import("./app.js").App} app
 * @param {any} approval
 */
export function decisionOf(app, approval) {
  const all = decisions(app.client);
  let decision = all.get(approval.id);
  if (decision) decision.take(approval);
  else {
    all.set(approval.id, (decision = new Decision(app, approval)));
    if (approval.status === "pending") app.changed(); // the header counts it
  }
  return decision;
}

/**
 * Return the decisions of the approvals that, as far as this tab knows, wait for the user.
 * @param {import("./client.js").Client} client
 */
export function waitingDecisions(client) {
  return [...decisions(client).values()].filter(({ approval }) => approval.status === "pending");
}

/**
 * Read what waits for the user, for the header's count. Without an answer the count begins with what the views show.
 * @param {import("./app.js").App} app
 */
export async function readWaiting(app) {
  try {
    const { approvals } = await app.client.call("a1/approvals?status=pending&limit=100");
    for (const approval of approvals) decisionOf(app, approval);
  } catch (error) {
    app.refused(error);
  }
}

/** @param {import("./client.js").Client} client */
function decisions(client) {
  let all = known.get(client);
  if (!all) known.set(client, (all = new Map()));
  return all;
}
