/** The form at which a user enters a token and a user id. */

import { ApiError } from "./errors.js";
import { Client } from "./client.js";
import { failure } from "./resource.js";
import { html } from "lit-html";

/**
 * Return a form that calls `enter` with a token that the gateway accepts.
 * @param {string} base
 * @param {string | null} reason why the user has to sign in again
 * @param {() => void} changed
 * @param {(token: string, user: string) => void} enter
 * @returns {{render: () => import("./resource.js").Content}}
 */
export function createSignIn(base, reason, changed, enter) {
  /** @type {unknown} */
  let error = null;
  let waits = false;

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    const [token, user] = [String(form.get("token")).trim(), String(form.get("user")).trim()];
    waits = true;
    error = null;
    changed();
    try {
      if (/[^\x21-\x7e]/.test(token)) throw new ApiError(400, "invalid_token", "A token has visible ASCII characters only.");
      await new Client(token, user, base).call("a1/agents");
      enter(token, user);
    } catch (refusal) {
      error = refusal instanceof ApiError && refusal.status === 401 ? unknown() : refusal;
    }
    waits = false;
    changed();
  }

  return {
    render: () => html`<main class="sign-in">
      <h1>Spass</h1>
      <p>Chat with your company's agents.</p>
      ${reason ? html`<p class="state" role="alert">${reason}</p>` : ""} ${error ? failure(error) : ""}
      <form @submit=${submit}>
        <label>Token <input name="token" type="password" required autocomplete="off" spellcheck="false"></label>
        <label>User id <input name="user" required maxlength="128" pattern="[A-Za-z0-9._@:+\\-]+" autocomplete="off" spellcheck="false"
          title="Letters, digits and . _ @ : + -"></label>
        <button ?disabled=${waits}>${waits ? "Signing in …" : "Sign in"}</button>
      </form>
      <p class="hint">Both stay in this tab only. A closed tab forgets them.</p>
    </main>`,
  };
}

/** The gateway's own message tells a program which header to check. */
function unknown() {
  return new ApiError(401, "invalid_token", "The gateway does not know this token. Check it, or ask your operator.");
}
