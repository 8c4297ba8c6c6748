/** The approvals view: what waits for the user, and what was decided. */

import "./shared.js";
import { approvalCard, STATUSES } from "./approval-card.js";
import { decisionOf, waitingDecisions } from "./decisions.js";
import { when } from "./format.js";
import { Pages } from "./pages.js";
import { firstFailure } from "./resource.js";
import { sessionLink } from "./session-link.js";
import { html } from "lit-html";

const POLL = 5000; // ms

/**
 * @param {import("./app.js").App} app
 * @returns {import("./app.js").View}
 */
export function createApprovals(app) {
  const waiting = newList("pending", settle);
  let list = newList("");
  /** @type {Map<string, any>} what has waited since the view was opened, in the order in which it is shown: nothing moves while the user decides */
  const shown = new Map();
  let filter = "";
  let isOpen = false;
  /** @type {number | undefined} */
  let timer;

  /**
   * @param {string} status
   * @param {() => void} [arrived]
   */
  function newList(status, arrived) {
    return /** @type {Pages<any>} */ (new Pages(app, `a1/approvals?limit=50${status ? `&status=${status}` : ""}`, "approvals", arrived));
  }

  function load() {
    clearTimeout(timer);
    void waiting.load();
    void list.load();
  }

  /** Show what waits now, and what came of that which does not wait any more. Then look again in a while, as long as the user sees the view. */
  function settle() {
    for (const approval of waiting.entries.toReversed()) if (!shown.has(approval.id)) shown.set(approval.id, approval);
    const waits = new Set(waiting.entries.map(({ id }) => id));
    for (const approval of shown.values()) decisionOf(app, approval);
    const open = waitingDecisions(app.client).filter(({ approval: { id } }) => waits.has(id) || shown.has(id) || waiting.isComplete);
    for (const decision of open) if (!waits.has(decision.approval.id)) void decision.read();
    clearTimeout(timer);
    if (isOpen && !document.hidden && open.length) timer = setTimeout(load, POLL);
  }

  /** Read everything again. What has been decided moves to the other list. */
  function refresh() {
    for (const [id, approval] of shown) if (decisionOf(app, approval).approval.status !== "pending") shown.delete(id);
    load();
  }

  function onVisible() {
    if (document.hidden) clearTimeout(timer);
    else load();
  }

  /** @param {string} status */
  function choose(status) {
    filter = status;
    list.close();
    list = newList(status);
    void list.load();
    app.changed();
  }

  /** @param {any} approval */
  function item(approval) {
    return html`<li>
      <p class="quiet"><time datetime=${approval.created_at}>${when(approval.created_at)}</time> · ${sessionLink(app, approval.agent, approval.session_id, "open the session")}</p>
      ${approvalCard(app, approval, app.changed)}
    </li>`;
  }

  /** @param {any[]} entries */
  const items = (entries) => html`<ul class="plain-list">${entries.map(item)}</ul>`;

  function decided() {
    const others = (/** @type {any[]} */ entries) => entries.filter(({ id, status }) => status !== "pending" && !shown.has(id));
    const none = html`<p class="quiet">${filter ? `No approval is ${STATUSES[filter].toLowerCase()}.` : "Nothing has been decided in the last 30 days."}</p>`;
    return list.show((entries) => (others(entries).length ? items(others(entries)) : none), none, true);
  }

  return {
    open() {
      if (isOpen) return;
      isOpen = true;
      document.addEventListener("visibilitychange", onVisible);
      refresh();
    },
    close() {
      isOpen = false;
      clearTimeout(timer);
      waiting.close();
      list.close();
      document.removeEventListener("visibilitychange", onVisible);
    },
    render: () => html`<div class="panel">
      <header class="panel-head"><h1>Approvals</h1><button type="button" @click=${refresh}>Refresh</button></header>
      ${firstFailure([waiting, list])}
      <section aria-labelledby="waiting"><h2 id="waiting">Waiting for you</h2>
        ${waiting.show(() => items([...shown.values()]), shown.size ? null : html`<p class="state">Nothing waits. When an agent wants to do what needs your consent, it is listed here and beside its call in the chat.</p>`, true)}</section>
      <section aria-labelledby="decided"><div class="panel-head"><h2 id="decided">Decided</h2>
          <label>Show <select @change=${(/** @type {Event} */ event) => choose(/** @type {HTMLSelectElement} */ (event.target).value)}>
            ${["", "executed", "denied", "failed", "expired"].map((status) => html`<option value=${status} ?selected=${status === filter}>${status ? STATUSES[status] : "All"}</option>`)}
          </select></label></div>
        ${decided()}</section>
    </div>`,
  };
}
