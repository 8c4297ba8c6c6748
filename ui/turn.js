/** A turn as the page shows it: computed from the events of its stream, or from its messages in the history. */

/**
 * @typedef {import("./stream.js").TurnEvent} TurnEvent
 *
 * @typedef {object} Call a call of a tool
 * @property {string} id
 * @property {string} tool
 * @property {unknown} args
 * @property {unknown} result
 * @property {"running" | "done" | "failed" | "waiting"} state
 * @property {string | null} agent the delegate that makes the call
 * @property {string | null} progress
 * @property {number | null} durationMs
 * @property {any[]} rich blocks for people, as docs/workspaces.md lists them
 * @property {any | null} approval
 * @property {Call[]} calls those that a delegate makes within this call
 *
 * @typedef {object} Step a call of the model: its text, and the tools that it called
 * @property {string} text
 * @property {Call[]} calls
 *
 * @typedef {object} Turn
 * @property {string} key
 * @property {string | null} answerId the id of the answer's message, once there is one
 * @property {string | null} question null for a summary, which answers no question
 * @property {string | null} askedAt
 * @property {Step[]} steps the last one's text is the answer
 * @property {boolean} running
 * @property {string | null} progress what the agent does now
 * @property {{code: string, message: string} | null} error
 * @property {string | null} finishReason
 * @property {{prompt_tokens: number, completion_tokens: number, total_tokens: number} | null} usage
 * @property {string | null} cost in US dollars
 * @property {boolean} compacted a summary has taken its place in the conversation
 * @property {string | null} sessionId
 */

/**
 * @param {string} key
 * @param {string | null} question
 * @returns {Turn}
 */
function emptyTurn(key, question) {
  return {
    key,
    answerId: null,
    question,
    askedAt: null,
    steps: [],
    running: false,
    progress: null,
    error: null,
    finishReason: null,
    usage: null,
    cost: null,
    compacted: false,
    sessionId: null,
  };
}

/** Computes a turn from a growing list of events: each event is read once. */
export class TurnReducer {
  /** @type {Turn} */
  turn;
  /** @type {Map<string, Call>} */
  #calls = new Map();
  #read = 0;
  /** @type {TurnEvent | undefined} */
  #first;
  /** @type {Map<number, Step>} by the number that the events have */
  #steps = new Map();
  #question;
  #key;

  /**
   * @param {string} key
   * @param {string | null} question
   */
  constructor(key, question) {
    this.#key = key;
    this.#question = question;
    this.turn = emptyTurn(key, question);
    this.turn.running = true;
  }

  /**
   * Read the events that are new, and return the turn. A list that starts from the beginning is that of a new attempt.
   * @param {TurnEvent[]} events
   */
  read(events) {
    if (events[0] !== this.#first) {
      this.#first = events[0];
      this.#read = 0;
      this.#calls.clear();
      this.#steps.clear();
      this.turn = emptyTurn(this.#key, this.#question);
      this.turn.running = true;
    }
    for (; this.#read < events.length; this.#read++) this.#apply(events[this.#read]);
    return this.turn;
  }

  /** @param {TurnEvent} event */
  #apply(event) {
    const turn = this.turn;
    switch (event.type) {
      case "status_update":
        if (typeof event.session_id === "string") turn.sessionId = event.session_id;
        if (event.tool_call) this.#start(event.tool_call);
        else if (event.tool_call_id) this.#progress(event.tool_call_id, event.progress);
        else if (event.status === "executing") turn.progress = text(event.detail);
        break;
      case "token":
        if (typeof event.content === "string") this.#step(Number(event.step) || 1).text += event.content;
        turn.progress = null;
        break;
      case "tool_call":
        this.#finish(event);
        break;
      case "approval":
        this.#wait(event.approval);
        break;
      case "usage":
        if (typeof event.usage?.total_tokens === "number") turn.usage = event.usage;
        turn.cost = text(event.cost?.usd) ?? (typeof event.cost_usd === "number" ? String(event.cost_usd) : null);
        break;
      case "done":
        turn.running = false;
        turn.answerId = text(event.message?.id);
        turn.finishReason = text(event.finish_reason);
        if (typeof event.session_id === "string") turn.sessionId = event.session_id;
        break;
      case "error":
        turn.running = false;
        turn.error = { code: String(event.error?.code ?? "internal_error"), message: String(event.error?.message ?? "The turn failed.") };
        break;
    }
  }

  /**
   * Return the step with a number of the events, which may be any that grow.
   * @param {number} number
   */
  #step(number) {
    let step = this.#steps.get(number);
    if (!step) {
      step = { text: "", calls: [] };
      this.#steps.set(number, step);
      this.turn.steps.push(step);
    }
    return step;
  }

  /** @param {any} started */
  #start({ id, tool, args, agent, parent_id: parentId }) {
    if (typeof id !== "string" || this.#calls.has(id)) return;
    const call = emptyCall(id, String(tool), args);
    call.agent = text(agent);
    const siblings = (parentId && this.#calls.get(parentId)?.calls) || (this.turn.steps.at(-1) ?? this.#step(0)).calls;
    this.#calls.set(id, call); // after its parent was looked for: no call is within itself
    siblings.push(call);
    this.turn.progress = null;
  }

  /**
   * @param {string} id
   * @param {unknown} progress
   */
  #progress(id, progress) {
    const call = this.#calls.get(id);
    if (call) call.progress = typeof progress === "string" ? progress : JSON.stringify(progress);
  }

  /** @param {any} event */
  #finish(event) {
    if (typeof event.id !== "string") return;
    this.#start(event);
    const call = /** @type {Call} */ (this.#calls.get(event.id));
    finishCall(call, event.result, event.ok !== false, event.rich);
    call.durationMs = typeof event.duration_ms === "number" ? event.duration_ms : null;
  }

  /** @param {any} approval */
  #wait(approval) {
    for (const call of this.#calls.values()) if (approval?.id && approvalId(call.result) === approval.id) call.approval = approval;
  }
}

/**
 * Return the turns of a session's messages, oldest first.
 * @param {any[]} messages
 * @returns {Turn[]}
 */
export function turnsOf(messages) {
  /** @type {Turn[]} */
  const turns = [];
  /** @type {Map<string, Call>} */
  let calls = new Map();
  for (const message of messages) {
    let turn = turns.at(-1);
    if (message.role === "user" || !turn) {
      turn = emptyTurn(message.id, message.role === "user" ? message.content : null);
      turn.askedAt = message.created_at;
      turn.compacted = message.compacted_at !== null;
      calls = new Map();
      turns.push(turn);
      if (message.role === "user") continue;
    }
    if (message.role === "tool") {
      const call = calls.get(message.tool_call_id);
      if (call) finishCall(call, json(message.content), undefined, message.rich);
      continue;
    }
    const step = { text: message.content, calls: message.tool_calls.map(recordedCall) };
    for (const call of step.calls) calls.set(call.id, call);
    turn.steps.push(step);
    turn.answerId = message.id;
    if (message.usage) turn.usage = message.usage;
    if (message.cost_usd) turn.cost = message.cost_usd;
  }
  return turns;
}

/**
 * Return what waits in a turn: the ids of approvals in the results of its calls.
 * @param {Turn} turn
 * @returns {string[]}
 */
export function approvalsOf(turn) {
  return turn.steps.flatMap(({ calls }) => calls.flatMap(callApprovals));
}

/**
 * Return the ids of the approvals of a call, with those of the calls that delegates made within it.
 * @param {Call} call
 * @returns {string[]}
 */
export function callApprovals(call) {
  const own = approvalId(call.result);
  const delegated = /** @type {any} */ (call.result)?.approvals;
  const ids = Array.isArray(delegated) ? delegated.map((one) => one?.approval_id).filter((id) => typeof id === "string") : [];
  return [...(own ? [own] : []), ...ids, ...call.calls.flatMap(callApprovals).filter((id) => !ids.includes(id))];
}

/**
 * Return the id of the approval for which a call waits, or null.
 * @param {any} result
 * @returns {string | null}
 */
export function approvalId(result) {
  return result?.approval_required === true ? text(result.approval_id) : null;
}

/**
 * @param {string} id
 * @param {string} tool
 * @param {unknown} args
 * @returns {Call}
 */
function emptyCall(id, tool, args) {
  return { id, tool, args, result: null, state: "running", agent: null, progress: null, durationMs: null, rich: [], approval: null, calls: [] };
}

/** @param {any} recorded as in the history */
function recordedCall(recorded) {
  return emptyCall(recorded.id, recorded.function.name, json(recorded.function.arguments));
}

/**
 * @param {Call} call
 * @param {any} result
 * @param {boolean | undefined} ok undefined: the result says it
 * @param {any} rich
 */
function finishCall(call, result, ok, rich) {
  call.result = result;
  call.state = approvalId(result) ? "waiting" : (ok ?? !isError(result)) ? "done" : "failed";
  call.rich = Array.isArray(rich) ? rich : [];
  call.progress = null;
}

/** @param {any} result */
function isError(result) {
  return typeof result?.error === "object" && typeof result.error?.code === "string";
}

/** @param {string} value */
function json(value) {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : null;
}
