/** The open conversation: what it is, its turns, what went wrong, and the field for the next message. */

import { composer } from "./composer.js";
import { ApiError, problem } from "./errors.js";
import { money, number, sum } from "./format.js";
import { failure, firstFailure } from "./resource.js";
import { fragment } from "./router.js";
import { html } from "lit-html";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./resource.js").Content} Content
 */

const CONTINUE = "Continue: what waited has been decided.";

/**
 * @param {Conversation} conversation
 * @param {import("./log.js").Log} log
 * @param {() => void} changed
 * @param {Content} choice what the user may choose before the first message
 * @returns {Content}
 */
export function conversationView(conversation, log, changed, choice) {
  const { record, session } = conversation;
  const isGone = record.error instanceof ApiError && record.error.status === 404;
  const isEmpty = !conversation.turns.length && !conversation.live;
  return html`<section class="conversation" aria-label="Conversation">
    ${head(conversation)}
    <div id="log" tabindex="0" role="group" aria-label="Messages" @scroll=${() => log.saveScroll()}>
      ${isEmpty && !record.value && !record.error ? html`<p class="state" role="status">Loading …</p>` : ""} ${log.elements()}
      ${isEmpty && record.value && !session?.message_count ? welcome(conversation) : ""}
    </div>
    <div class="notices">${notices(conversation, log, changed)}</div>
    ${choice} ${session?.archived_at ? archived(conversation) : isGone ? "" : conversation.agent.usable === false && !conversation.busy ? unusable(conversation) : composer(conversation, changed, () => log.scrollToEnd())}
  </section>`;
}

/** @param {Conversation} conversation */
function head({ agent, session, turns }) {
  const costs = turns.flatMap((turn) => turn.cost ?? []);
  const tokens = turns.reduce((total, turn) => total + (turn.usage?.total_tokens ?? 0), 0);
  return html`<header>
    <h1><bdi>${session?.title || agent.name}</bdi></h1>
    <p class="quiet facts">
      <span class="about">${session?.title ? html`<bdi>${agent.name}</bdi>: ` : ""}${agent.description}</span>
      ${agent.model ? html`<span>Model <bdi>${agent.model}</bdi>${agent.stand_in ? html` <span class="badge" title="No provider serves this model here: an offline program with simple answers takes its place.">stand-in</span>` : ""}</span>` : ""}
      ${session?.workspace ? html`<span>Workspace <a href=${fragment("workspaces", session.workspace)}><bdi>${session.workspace}</bdi></a></span>` : ""}
      ${tokens ? html`<span>Session: ${number(tokens)} tokens${costs.length ? html` · ${money(sum(costs))}` : ""}</span>` : ""}
      ${session?.parent_session_id ? html`<span><a href=${fragment("chat", agent.name, session.parent_session_id)}>Earlier part</a></span>` : ""}
    </p>
  </header>`;
}

/** @param {Conversation} conversation */
function welcome({ agent }) {
  return html`<div class="welcome quiet">
    <p>Write a message to begin.</p>
    ${agent.operator_id ? html`<p>This agent goes on in one session, which begins with your first message.</p>` : ""}
  </div>`;
}

/** @param {Conversation} conversation */
function unusable({ agent, draft }) {
  return html`<p class="state forbidden">You cannot write to this agent. ${agent.unusable_reason ?? ""} ${draft.text ? "Your draft is kept." : ""}</p>`;
}

/** @param {Conversation} conversation */
function archived({ agent, session }) {
  return html`<p class="state">This session is archived: its messages can be read, but not answered.
    ${session.successor_session_id ? html`<a href=${fragment("chat", agent.name, session.successor_session_id)}>It continues here.</a>` : ""}</p>`;
}

/**
 * @param {Conversation} conversation
 * @param {import("./log.js").Log} log
 * @param {() => void} changed
 */
function notices(conversation, log, changed) {
  const { error, record, stream, live } = conversation;
  const isBroken = stream?.status === "reconnecting";
  return html`
    ${live && live.question === null && live.running ? html`<p class="state" role="status">A message from another tab or device is being answered.</p>` : ""}
    ${isBroken && navigator.onLine ? html`<p class="state reconnecting" role="status">${whyBroken(stream.error)} Reconnecting … ${stream.isReceived ? "The agent goes on meanwhile." : "Then your message is sent again."}</p>` : ""}
    ${error ? refused(conversation, changed) : record.error && !isBroken ? unread(conversation) : ""}
    ${log.canContinue
      ? html`<p class="state">Everything that waited is decided.
          <button type="button" @click=${() => conversation.send(CONTINUE)}>Tell the agent to continue</button></p>`
      : ""}`;
}

/** @param {Conversation} conversation */
function unread({ agent, draft, record }) {
  const isGone = record.error instanceof ApiError && record.error.code === "session_not_found";
  if (!isGone) return firstFailure([record]);
  const others = html`<p>${draft.text ? "Your draft is kept. " : ""}<a href=${fragment("chat", agent.name, "new")}>Begin a new session</a> or choose another one.</p>`;
  return failure(record.error, null, "", others);
}

/**
 * @param {Conversation} conversation
 * @param {() => void} changed
 */
function refused(conversation, changed) {
  const { error, draft } = conversation;
  const busyWith = error instanceof ApiError && error.code === "session_busy" ? error.details.message_id : null;
  const dismiss = () => {
    conversation.error = null;
    changed();
  };
  const actions = html`<p class="actions">
      ${busyWith
        ? html`<button type="button" @click=${() => conversation.follow(busyWith)}>Follow it</button>
            <button type="button" @click=${() => conversation.stop(busyWith)}>Stop it</button>`
        : ""}
      <button type="button" @click=${dismiss}>Close this notice</button>
      ${draft.returned ? html`<span class="quiet">Your message is back in the field below.</span>` : ""}
    </p>`;
  return failure(error, null, "", actions);
}

/** @param {import("./errors.js").ApiError | null} error */
function whyBroken(error) {
  if (!error || error.status === 0) return "The connection broke off.";
  const { title, advice } = problem(error);
  return `${title} ${advice}`;
}
