/** Errors of the gateway and of the way to it, and what the user can do about them. */

import { duration } from "./format.js";

/**
 * @typedef {object} Problem
 * @property {string} title what is wrong
 * @property {string} advice what to do
 * @property {string} details what the gateway said to programs, or ""
 */

/** An answer of the gateway that is an error, or no answer (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status, or 0 if there was no answer
   * @param {string} code as in the error envelope; `offline`, `not_json` and `not_stored` are the page's own
   * @param {string} message
   * @param {{details?: Record<string, any>, requestId?: string | null, retryAfter?: number | null}} [more] `retryAfter` in seconds
   */
  constructor(status, code, message, { details = {}, requestId = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }

  /** True if the same request may succeed later: the gateway did not answer, or told to wait. */
  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** @type {Record<string, string>} what is wrong, where the gateway's own message is for programs */
const TITLES = {
  user_id_required: "The user id is missing.",
  user_id_invalid: "The gateway does not accept this user id.",
  user_id_not_allowed: "This token may not act for this user.",
  session_busy: "Another message of this session is being answered.",
  session_archived: "This session is archived.",
  session_not_found: "There is no such session.",
  agent_not_found: "There is no agent of this name.",
  model_not_found: "The agent's model does not exist.",
  model_not_allowed: "This token may not use the agent's model.",
  admin_required: "Only an admin's token may do this.",
  approval_not_found: "There is no such approval.",
  route_not_found: "There is nothing of this name.",
  method_not_allowed: "The gateway does not offer this.",
  idempotency_key_reused: "The gateway has answered another message in place of this one.",
  idempotency_in_progress: "The gateway is still busy with the same request.",
  rate_limited: "Too many requests at once.",
  no_backend_available: "No provider serves this model now.",
  storage_unavailable: "The gateway's storage does not answer.",
  turn_lost: "The answer was lost.",
  stream_not_found: "The answer is gone.",
  upstream_error: "The model's provider failed.",
  upstream_rejected: "The model's provider refused the request.",
  upstream_timeout: "The answer took too long.",
  internal_error: "The gateway failed.",
};

/** Words of messages that are for programs: routes, headers, status codes, and a field at the beginning. */
const FOR_PROGRAMS = /\b(?:GET|POST|PUT|PATCH|DELETE)\b|\/(?:a1|c1|v1)\/|\bSPASS-|Idempotency-Key|Authorization|^[a-z_]+(?:\.\w+)*:|\bHTTP\b|\bJSON\b|\bheader\b/;

/** @type {Record<string, string>} */
const ADVICE = {
  offline: "Check the connection.",
  not_json: "Something between this page and the gateway answered, for example a proxy or a sign-in page. Reload, or ask your operator.",
  session_busy: "Follow or stop it, then send again.",
  compaction_in_progress: "The session is being summarised. Wait a moment, then send again.",
  session_not_found: "The session was deleted. Begin a new session.",
  agent_not_found: "The agent is gone, perhaps since the last deployment. Choose another one.",
  approval_decided: "It was decided elsewhere. The list shows the outcome.",
  preview_not_seen: "Reload, and read the change to its end. Nothing was changed.",
  approval_not_found: "It was deleted with its session, or is older than 30 days.",
  workspace_not_found: "It was deleted, or never made. Choose another one.",
  version_not_found: "Choose a version from the list.",
  payload_too_large: "Shorten it, or split it into several.",
  no_backend_available: "Choose another agent or try later.",
  storage_unavailable: "Try again in a moment.",
  idempotency_key_reused: "Send the message again.",
  user_id_required: "Sign in again.",
  user_id_invalid: "Sign in with letters, digits and . _ @ : + - only.",
  user_id_not_allowed: "Sign in as another one, or ask your operator.",
  upstream_timeout: "Try again, or ask for less at once.",
  message_unknown: "It is back in the draft. Send it again as it is: the gateway answers it only once.",
  stream_not_found: "The gateway does not have this answer any more. Reload the session.",
  turn_lost: "The process that answered has died, and nothing was recorded. Send the message again if you still want it.",
  upload_refused: "Send the file again: the page asks for a new form.",
  upload_lost: "Check the connection, then send the file again. Nothing is ingested twice.",
  embedding_model_mismatch: "The index was built with another embedding model. Ask your operator, or use a new index.",
  admin_required: "Sign in with a token that may, or ask your operator.",
  model_not_allowed: "Choose another agent, or ask your operator.",
};

/**
 * Return what is wrong and what to do about it.
 * @param {unknown} error
 * @returns {Problem}
 */
export function problem(error) {
  if (!(error instanceof ApiError)) {
    return { title: "The page failed.", advice: "Reload it.", details: error instanceof Error ? error.message : String(error) };
  }
  const wait = error.retryAfter ? `Try again in ${duration(error.retryAfter)}.` : "";
  const id = error.status >= 500 && error.requestId ? `(Request ${error.requestId})` : "";
  const title = titleOf(error);
  const details = title === error.message ? id : `${error.message} ${id}`.trim();
  return { title, advice: [Object.hasOwn(ADVICE, error.code) ? ADVICE[error.code] : fallback(error), wait].filter(Boolean).join(" "), details };
}

/** @param {ApiError} error */
function titleOf({ code, message, status }) {
  if (Object.hasOwn(TITLES, code)) return TITLES[code];
  if (!FOR_PROGRAMS.test(message)) return message;
  return status >= 500 ? "The gateway failed." : "The gateway refused this.";
}

/** @param {ApiError} error */
function fallback({ status, retryAfter }) {
  if (status === 403) return "This token may not do this. Sign in with a token that may, or ask your operator.";
  return status >= 500 && !retryAfter ? "Try again in a moment." : "";
}
