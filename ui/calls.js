/** Cards of tool calls: what runs, what came of it, and what waits for the user. */

import { approvalCard } from "./approval-card.js";
import { pretty } from "./format.js";
import { long } from "./long.js";
import { richBlock } from "./rich.js";
import { approvalId, callApprovals } from "./turn.js";
import { visible } from "./visible.js";
import { html } from "lit-html";

/**
 * @typedef {import("./turn.js").Call} Call
 * @typedef {import("./resource.js").Content} Content
 */

const STATES = { running: "running", done: "done", failed: "failed", waiting: "waits for you" };
const MAX_CALLS = 100;

/**
 * The values that the cards of a session share.
 * @typedef {object} CallContext
 * @property {import("./app.js").App} app
 * @property {Map<string, any>} approvals by id, as the gateway answered last
 * @property {(approval: any) => void} decided is called with an approval after its decision
 */

/**
 * Return the cards of some calls. Of many, the last ones are shown, and the others on demand.
 * @param {Call[]} calls
 * @param {CallContext} context
 * @returns {Content}
 */
export function callCards(calls, context) {
  /** @param {Call[]} some */
  const cards = (some) => some.map((call) => card(call, context));
  const hidden = calls.length - MAX_CALLS;
  if (hidden <= 0) return html`${cards(calls)}`;
  return html`${long(`${hidden} earlier calls`, () => callCards(calls.slice(0, hidden), context))}${cards(calls.slice(hidden))}`;
}

/**
 * @param {Call} call
 * @param {CallContext} context
 * @returns {Content}
 */
function card(call, context) {
  const id = approvalId(call.result);
  const approval = id ? (context.approvals.get(id) ?? call.approval) : null;
  const state = approval && approval.status !== "pending" ? approval.status : STATES[call.state];
  const within = call.calls.flatMap(callApprovals);
  const delegated = callApprovals(call).filter((one) => one !== id && !within.includes(one)).flatMap((one) => context.approvals.get(one) ?? []);
  const time = call.durationMs === null ? "" : html`<span class="quiet">${(call.durationMs / 1000).toFixed(1)} s</span>`;
  return html`<section class="call ${look(call, approval)}" aria-label="Call of ${call.tool}">
    <header>
      <bdi class="tool">${visible(call.tool)}</bdi> ${call.agent ? html`<span class="quiet">by <bdi>${visible(call.agent)}</bdi></span>` : ""}
      <span class="badge">${state}</span> ${time}
    </header>
    ${call.progress ? html`<p class="quiet"><bdi>${visible(call.progress)}</bdi></p>` : ""}
    ${approval ? approvalCard(context.app, approval, context.decided) : call.rich.map(richBlock)}
    ${delegated.map((one) => approvalCard(context.app, one, context.decided))}
    ${call.calls.length ? html`<div class="within">${callCards(call.calls, context)}</div>` : ""}
    ${approval ? "" : details("Arguments", call.args)} ${call.state === "running" ? "" : details("Result", call.result)}
  </section>`;
}

/**
 * Return the class of a card: what became of the call, or of the decision about it.
 * @param {Call} call
 * @param {any} approval
 */
function look(call, approval) {
  if (!approval || approval.status === "pending") return call.state;
  return approval.status === "executed" ? "done" : "failed";
}

/**
 * @param {string} title
 * @param {unknown} value
 */
function details(title, value) {
  return long(title, () => html`<pre class="json">${visible(typeof value === "string" ? value : pretty(value))}</pre>`);
}
