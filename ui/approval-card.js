/** A call that waits for the user's decision, or what came of it. */

import { announce } from "./announce.js";
import { Decision, decisionOf } from "./decisions.js";
import { diffPart } from "./diff.js";
import { count, pretty, size, when } from "./format.js";
import { long } from "./long.js";
import { failure } from "./resource.js";
import { richBlock } from "./rich.js";
import { html, render } from "lit-html";
import { visible } from "./visible.js";

/** @type {Record<string, string>} */
export const STATUSES = { pending: "Waits for you", executed: "Executed", denied: "Denied", failed: "Failed", expired: "Expired", deleted: "Deleted" };

/** @type {Record<string, string>} what an outcome means */
const MEANINGS = {
  denied: "Nothing was changed.",
  failed: "It was approved, but nothing was changed.",
  expired: "Nobody decided in time, so nothing was changed. Ask the agent again if you still want it.",
};
const READING = 500; // ms in which a card that has just come up takes no decision: a click that is on its way was meant for something else
const MAX_SHOWN = 2000; // characters of a preview

/**
 * @param {import("./app.js").App} app
 * @param {any} approval as `GET /a1/approvals/{id}` answers
 * @param {(approval: any) => void} decided is called with the approval after a decision
 * @returns {import("./resource.js").Content}
 */
export function approvalCard(app, approval, decided) {
  const decision = decisionOf(app, approval);
  decision.tell(decided);
  return html`<approval-card .decision=${decision}></approval-card>`;
}

/** Renders itself when its decision changes, so its surroundings need not. */
class ApprovalCard extends HTMLElement {
  /** @type {Decision | null} */
  #decision = null;
  #status = ""; // as it was shown last
  #stop = () => {};
  #isReady = false;
  /** @type {number | undefined} */
  #timer;

  /** @param {Decision} decision */
  set decision(decision) {
    if (decision !== this.#decision) {
      this.#decision = decision;
      this.#status = decision.approval.status;
      render("", this); // what was opened belongs to the other call
      this.#watch();
    }
    this.#render();
  }

  connectedCallback() {
    this.#watch();
    this.#render();
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
    this.#stop();
  }

  #watch() {
    this.#stop();
    clearTimeout(this.#timer);
    this.#isReady = false;
    this.#timer = setTimeout(() => ((this.#isReady = true), this.#render()), READING);
    const stop = this.#decision?.watch(() => this.#render());
    this.#stop = () => void stop?.();
  }

  #render() {
    const decision = this.#decision;
    if (!decision || !this.isConnected) return;
    const hadFocus = this.contains(document.activeElement);
    render(card(decision, this.#isReady), this);
    const { status, tool } = decision.approval;
    const ended = status !== this.#status;
    this.#status = status;
    if (!ended) return;
    announce(`${tool}: ${STATUSES[status] ?? status}.`);
    if (hadFocus) /** @type {HTMLElement | null} */ (this.querySelector(".title"))?.focus(); // the buttons are gone
  }
}

customElements.define("approval-card", ApprovalCard);

/**
 * @param {Decision} decision
 * @param {boolean} isReady
 */
function card(decision, isReady) {
  const { approval, busy, error, note } = decision;
  const { status } = approval;
  return html`<article class="approval ${status}" aria-label="Approval of ${approval.tool}" aria-busy=${busy !== null}>
    <p class="title" tabindex="-1"><span class="badge ${status}">${STATUSES[status] ?? status}</span> <bdi class="tool">${approval.tool}</bdi>
      <span class="quiet">by <bdi>${approval.agent}</bdi> · ${status === "pending" ? `expires ${when(approval.expires_at)}` : when(approval.decided_at ?? approval.expires_at)}</span></p>
    ${status === "pending" ? effect(decision) : approval.rich?.length ? approval.rich.map(richBlock) : json("Preview", approval.preview)}
    ${status === "pending" && !approval.rich?.length ? "" : long("Arguments", () => (approval.arguments === null ? html`<p class="quiet">They are no longer stored.</p>` : pre(approval.arguments)))}
    ${status === "pending" ? choice(decision, isReady) : outcome(approval)}
    ${note ? html`<p role="status">${note}</p>` : ""} ${error ? failure(error, () => void decision.read()) : ""}
  </article>`;
}

/**
 * Show what a call that waits would do. Nothing of it is behind a summary, and a long change goes on part by part.
 * @param {Decision} decision
 */
function effect(decision) {
  const { preview, rich, arguments: args } = decision.approval;
  if (!rich?.length) return html`${pre(preview)}${args === null ? "" : html`<p class="quiet">Arguments</p>${pre(args)}`}`;
  const { parts, isRead, isReading } = decision.changes;
  const files = preview?.file_count ?? (preview?.files?.length ?? rich.length) + (preview?.omitted ?? 0);
  const workspace = preview?.workspace ? html` in the workspace <bdi>${visible(String(preview.workspace))}</bdi>` : "";
  const more = parts.length ? "Show more of the change" : "Read the whole change";
  const why = preview?.why ? html` <bdi>${visible(String(preview.why))}</bdi>` : "";
  return html`<p>This changes ${count(files, "file")}${workspace}.${why}
      ${preview?.complete === false ? html`The preview leaves out ${size(preview.omitted_bytes ?? 0)} of the diffs${preview.omitted ? ` and the names of ${count(preview.omitted, "file")}` : ""}.` : ""}</p>
    ${(parts.length ? parts.flat() : []).map(({ file, lines, isFirst }) => diffPart(file, lines, isFirst))}
    ${isRead ? "" : html`<p><button type="button" ?disabled=${isReading} @click=${() => void decision.readMore()}>${isReading ? "Loading …" : more}</button>
      <span class="hint">You can approve it after its end was shown.</span></p>`}`;
}

/**
 * @param {Decision} decision
 * @param {boolean} isReady
 */
function choice(decision, isReady) {
  const isShut = !isReady || !decision.isOpen || decision.isTooLong;
  const isUnread = !decision.changes.isRead;
  /** @param {import("./decisions.js").Kind} kind */
  const decide = (kind) => (/** @type {MouseEvent} */ event) => {
    if (event.detail < 2) void decision.decide(kind); // the second click of a double click may meet another card than the first
  };
  const { busy, reason, isOpen, isTooLong } = decision;
  return html`<label class="reason"><span>Reason <span class="hint">(optional; the agent reads it)</span></span>
      <input type="text" autocomplete="off" .value=${reason} ?disabled=${!isOpen}
        @input=${(/** @type {Event} */ event) => decision.setReason(/** @type {HTMLInputElement} */ (event.target).value)}></label>
    ${isTooLong ? html`<p class="state failed" role="alert">A reason may have 4 KB. Shorten it.</p>` : ""}
    <p class="choice">
      <button type="button" class="primary" ?disabled=${isShut || isUnread} @click=${decide("approve")}>${busy === "approve" ? "Approving …" : "Approve"}</button>
      <button type="button" ?disabled=${isShut} @click=${decide("deny")}>${busy === "deny" ? "Denying …" : "Deny"}</button>
      ${busy === "read" ? html`<span class="quiet" role="status">Reading what came of it …</span>` : ""}
    </p>`;
}

/** @param {any} approval */
function outcome({ status, reason, result, error }) {
  return html`${MEANINGS[status] ? html`<p>${MEANINGS[status]}</p>` : ""}
    ${error ? html`<p class="bad"><bdi>${visible(String(error.message ?? error.code))}</bdi> ${error.code === "workspace_conflict" ? "A file has changed since the preview. Ask the agent again." : ""}</p>` : ""}
    ${reason ? html`<p>Reason: <bdi>${visible(reason)}</bdi></p>` : ""} ${status === "executed" ? long("Result", () => pre(result)) : ""}`;
}

/**
 * Show a value, or its beginning with a way to see all of it.
 * @param {string} title
 * @param {unknown} value
 */
function json(title, value) {
  const text = visible(pretty(value));
  return text.length > MAX_SHOWN ? html`<pre class="json">${text.slice(0, MAX_SHOWN)} …</pre>${long(`Whole ${title.toLowerCase()}`, () => pre(value))}` : pre(value);
}

/** @param {unknown} value */
function pre(value) {
  return html`<pre class="json" tabindex="0" role="region" aria-label="Value">${visible(pretty(value))}</pre>`;
}
