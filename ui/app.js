/** The page: sign-in, header and the view that the address fragment names. */

import "./shared.js";
import { forgetAnnouncements } from "./announce.js";
import { Client } from "./client.js";
import { readWaiting, waitingDecisions } from "./decisions.js";
import { closeDialogs } from "./dialog.js";
import { ApiError } from "./errors.js";
import { helpOnKey, showHelp } from "./help.js";
import { failure } from "./resource.js";
import { fragment, place } from "./router.js";
import { createSignIn } from "./sign-in.js";
import { Store } from "./store.js";
import { html, render } from "lit-html";

/**
 * The shell, as a view uses it.
 * @typedef {object} App
 * @property {Client} client
 * @property {Store} store
 * @property {() => void} changed render once before the next frame
 * @property {(error: unknown) => boolean} refused call it with every error of the client. True: the user was signed out (401)
 * @property {(address: string) => void} go show the view of a fragment
 */

/**
 * @typedef {object} View
 * @property {(params: string[]) => void} open is called with the fragment's parameters when it names the view, also if only they change
 * @property {() => import("./resource.js").Content} render
 * @property {() => void} close is called when another view is shown. What streams goes on
 */

/**
 * The views. Each is a file of its own, which is loaded at its first use.
 * @type {Record<string, {title: string, create: (app: App) => Promise<View>}>}
 */
const VIEWS = {
  chat: { title: "Chat", create: async (app) => (await import("./chat.js")).createChat(app) },
  approvals: { title: "Approvals", create: async (app) => (await import("./approvals.js")).createApprovals(app) },
  workspaces: { title: "Workspaces", create: async (app) => (await import("./workspaces.js")).createWorkspaces(app) },
  indices: { title: "Indices", create: async (app) => (await import("./indices.js")).createIndices(app) },
  usage: { title: "Usage", create: async (app) => (await import("./usage.js")).createUsage(app) },
};

const BASE = new URL(".", document.baseURI).href;
const root = /** @type {HTMLElement} */ (document.getElementById("page"));
const store = new Store();
let frame = 0;

/** @type {Client | null} */
let client = null;
/** @type {Map<string, View>} */
let views = new Map();
let current = "";
let broken = false;
let isMenuOpen = false;
/** @type {{render: () => import("./resource.js").Content}} */
let signIn;

function changed() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    render(client ? page() : signIn.render(), root);
  });
}

/**
 * @param {string} token
 * @param {string} user
 */
function enter(token, user) {
  store.set("token", token);
  store.set("user", user);
  client = new Client(token, user, BASE);
  views = new Map();
  current = "";
  show();
  void readWaiting(appOf(client));
}

/**
 * Return what a view gets. An error of this client does not sign out the user of a later one.
 * @param {Client} client
 * @returns {App}
 */
function appOf(client) {
  return { client, store, changed, refused: (error) => refused(error, client), go };
}

/** @param {string | null} [reason] */
function signOut(reason = null) {
  client?.close();
  closeDialogs();
  forgetAnnouncements();
  client = null;
  for (const view of views.values()) view.close();
  views = new Map();
  store.clear();
  applyTheme();
  history.replaceState(null, "", location.pathname);
  signIn = createSignIn(BASE, reason, changed, enter);
  changed();
}

/**
 * @param {unknown} error
 * @param {Client} from
 */
function refused(error, from) {
  if (!(error instanceof ApiError) || error.status !== 401) return false;
  if (client === from) signOut("The gateway does not accept the token any more. Sign in again.");
  return true;
}

function show() {
  if (!client) return;
  const { view, params } = place();
  const name = Object.hasOwn(VIEWS, view) ? view : "chat";
  if (name !== current) views.get(current)?.close();
  current = name;
  broken = false;
  if (isMenuOpen) document.getElementById("main")?.focus(); // what had the focus is hidden
  isMenuOpen = false;
  const app = appOf(client);
  const shown = views.get(name);
  if (shown) shown.open(name === view ? params : []);
  else void load(name, app);
  document.title = `${VIEWS[name].title} – Spass`;
  changed();
}

/**
 * Create a view, and show it if it is still the one that the address names.
 * @param {string} name
 * @param {App} app
 */
async function load(name, app) {
  try {
    const view = await VIEWS[name].create(app);
    if (app.client !== client || views.has(name)) return;
    views.set(name, view);
    if (name === current) show();
  } catch {
    if (name === current) broken = true; // its file did not arrive
    changed();
  }
}

/** @param {string} address */
function go(address) {
  if (location.hash === address) show();
  else location.hash = address;
}

function page() {
  return html`<header class=${isMenuOpen ? "bar open" : "bar"}>
      <a class="skip" href="#main" @click=${skip}>Skip to the content</a>
      <strong class="brand">Spass</strong>
      <button type="button" class="disclosure" aria-expanded=${isMenuOpen} aria-controls="views" @click=${() => openMenu(!isMenuOpen)}>Menu${waitingBadge()}</button>
      <strong class="disclosure">${VIEWS[current]?.title ?? ""}</strong>
      <nav id="views" aria-label="Views">
        ${Object.entries(VIEWS).map(([name, { title }]) => html`<a href=${fragment(name)} aria-current=${name === current ? "page" : "false"}>${title}${name === "approvals" ? waitingBadge() : ""}</a>`)}
      </nav>
      <span class="user">${store.get("user")}</span>
      <button type="button" aria-label="Keys" title="Keys (?)" @click=${showHelp}>?</button>
      <button type="button" @click=${switchTheme}>${theme() === "dark" ? "Light" : "Dark"}</button>
      <button type="button" @click=${() => signOut()}>Sign out</button>
    </header>
    ${navigator.onLine ? "" : html`<p class="state offline" role="status">You are offline. The page goes on when the connection is back.</p>`}
    ${store.holds ? "" : html`<p class="state failed" role="alert">The browser's storage for this tab is full or switched off: drafts are lost when you reload.</p>`}
    <main id="main" class=${current} tabindex="-1">${content()}</main>`;
}

/** Return what the view shows. A view that fails leaves a message, so that the header stays and leads to the others. */
function content() {
  try {
    return views.get(current)?.render() ?? notLoaded();
  } catch (error) {
    console.error(error);
    return failure(error);
  }
}

function notLoaded() {
  if (!broken) return html`<p class="state" role="status">Loading …</p>`;
  return html`<div class="state failed" role="alert">
    <p><strong>This part of the page did not load.</strong> There is a newer version of the page, or no connection. Reload the page: what you have written is kept.</p>
    <button type="button" @click=${() => location.reload()}>Reload the page</button>
  </div>`;
}

function waitingBadge() {
  const count = client ? waitingDecisions(client).length : 0;
  return count ? html` <span class="badge pending">${count}<span class="unseen"> waiting</span></span>` : "";
}

/** @param {boolean} isOpen */
function openMenu(isOpen) {
  isMenuOpen = isOpen;
  changed();
}

/** @param {KeyboardEvent} event */
function closeMenuOnKey(event) {
  if (!isMenuOpen || event.key !== "Escape") return;
  event.stopImmediatePropagation(); // the answer goes on
  openMenu(false);
  /** @type {HTMLElement | null} */ (document.querySelector(".bar > .disclosure"))?.focus();
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function theme() {
  return store.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function switchTheme() {
  store.set("theme", theme() === "dark" ? "light" : "dark");
  applyTheme();
  changed();
}

function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

root.replaceChildren();
applyTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (applyTheme(), changed()));
addEventListener("hashchange", show);
addEventListener("online", changed);
addEventListener("offline", changed);
addEventListener("keydown", (event) => client && helpOnKey(event));
addEventListener("keydown", closeMenuOnKey);
signIn = createSignIn(BASE, null, changed, enter);
const [token, user] = [store.get("token"), store.get("user")];
if (token && user) enter(token, user);
else changed();
