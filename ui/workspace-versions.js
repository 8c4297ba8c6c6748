/** The versions of a workspace, and what one of them changed. */

import { changes } from "./archive.js";
import { count, number, when } from "./format.js";
import { long } from "./long.js";
import { Pages } from "./pages.js";
import { Resource } from "./resource.js";
import { richBlock } from "./rich.js";
import { fragment } from "./router.js";
import { sessionLink } from "./session-link.js";
import { html, render } from "lit-html";
import { visible } from "./visible.js";

const MAX_OPEN = 20; // diffs that are shown at once
const MAX_PAGE = 1000;

/**
 * @typedef {object} Version as `GET …/versions` lists it
 * @property {number} version
 * @property {string | null} message
 * @property {string | null} user
 * @property {string | null} agent
 * @property {string | null} session_id
 * @property {string} created_at
 * @property {number} added
 * @property {number} changed
 * @property {number} deleted
 */

/** The list of versions, newest first. */
export class VersionList {
  /** @type {Pages<Version>} */
  #pages;
  #app;
  #id;

  /**
   * @param {import("./app.js").App} app
   * @param {string} id of the workspace
   */
  constructor(app, id) {
    this.#app = app;
    this.#id = id;
    this.#pages = new Pages(app, `a1/workspaces/${encodeURIComponent(id)}/versions?limit=50`, "versions");
  }

  load() {
    void this.#pages.load();
  }

  close() {
    this.#pages.close();
  }

  render() {
    return this.#pages.show((versions) => html`<ol class="plain-list versions" reversed>${versions.map((version, index) => this.#item(version, index === 0))}</ol>`, null);
  }

  /**
   * @param {Version} version
   * @param {boolean} isNewest
   */
  #item(version, isNewest) {
    const name = String(version.version);
    return html`<li>
      <h2><a href=${fragment("workspaces", this.#id, "versions", name)}>Version ${number(version.version)}</a> ${isNewest ? html`<span class="badge">newest</span>` : ""}</h2>
      ${origin(this.#app, version)}
      <p class="quiet">${changes(version)} · <a href=${fragment("workspaces", this.#id, "at", name)}>its files</a></p>
    </li>`;
  }
}

/** One version: who made it, and how it differs from the one before. */
export class VersionDetails {
  /** @type {Resource<{about: Version | null, from: number, files: any[]}>} */
  #details;
  /** @type {Set<string>} */
  #chosen = new Set();
  #element = document.createElement("div"); // of its own, so what is opened in it does not stay for another version
  #app;
  #id;
  #restore;

  /**
   * @param {import("./app.js").App} app
   * @param {string} id of the workspace
   * @param {string} version
   * @param {import("./restore.js").Restore} restore
   */
  constructor(app, id, version, restore) {
    this.#app = app;
    this.#id = id;
    this.version = version;
    this.#restore = restore;
    this.#details = new Resource(() => this.#read(), (error) => (error && app.refused(error), app.changed()));
    void this.#details.load();
  }

  close() {
    this.#details.close();
  }

  async #read() {
    const route = `a1/workspaces/${encodeURIComponent(this.#id)}`;
    const [diff, about] = await Promise.all([this.#app.client.call(`${route}/diff?to=${encodeURIComponent(this.version)}`), this.#about(route)]);
    return { about, from: diff.from, files: diff.files.map((/** @type {any} */ file) => ({ kind: "diff", ...file })) };
  }

  /**
   * Return the version as the list has it: the newest comes first, and numbers have no gaps.
   * @param {string} route
   * @returns {Promise<Version | null>}
   */
  async #about(route) {
    const { version: newest } = await this.#app.client.call(route);
    const place = newest - Number(this.version);
    if (!(place >= 0)) return null;
    const { versions } = await this.#app.client.call(`${route}/versions?limit=${Math.min(place + 1, MAX_PAGE)}`);
    return versions.find((/** @type {Version} */ one) => String(one.version) === this.version) ?? null;
  }

  render() {
    render(this.#content(), this.#element);
    return html`${this.#element}`;
  }

  #content() {
    return this.#details.show(({ about, from, files }) => html`<h2>Version ${this.version}</h2>
        ${about ? origin(this.#app, about) : ""}
        <p class="choice"><a href=${fragment("workspaces", this.#id, "at", this.version)}>Its files</a>
          ${this.#restoreButton(Number(this.version), "Restore this version")} ${from ? this.#restoreButton(from, `Go back to version ${from}`) : ""}</p>
        <h3>${from ? `Changes since version ${number(from)}` : "Changes"}</h3>
        ${files.length > 1 ? html`<p class="quiet">${count(files.length, "file")}. Choose files to restore only these.</p>` : ""}
        ${files.length ? "" : html`<p class="quiet">No file differs.</p>`}
        ${this.#files(files)}`);
  }

  /**
   * @param {any[]} files
   * @returns {import("./resource.js").Content}
   */
  #files(files) {
    return html`${files.slice(0, MAX_OPEN).map((file) => this.#file(file))}
      ${files.length > MAX_OPEN ? long(`${number(files.length - MAX_OPEN)} more files`, () => this.#files(files.slice(MAX_OPEN))) : ""}`;
  }

  /**
   * @param {number} version
   * @param {string} label
   */
  #restoreButton(version, label) {
    const paths = [...this.#chosen];
    return html`<button type="button" @click=${() => this.#restore.ask(version, paths.length ? paths : null)}>${label}${paths.length ? ` (${count(paths.length, "file")})` : ""}</button>`;
  }

  /** @param {any} file */
  #file(file) {
    const choose = (/** @type {Event} */ event) => {
      if (/** @type {HTMLInputElement} */ (event.target).checked) this.#chosen.add(file.path);
      else this.#chosen.delete(file.path);
      this.#app.changed();
    };
    return html`<div class="changed"><label class="check"><input type="checkbox" .checked=${this.#chosen.has(file.path)} @change=${choose}> <span class="unseen">Choose <bdi>${file.path}</bdi></span></label>${richBlock(file)}</div>`;
  }
}

/**
 * Say who made a version, when and why.
 * @param {import("./app.js").App} app
 * @param {Version} version
 */
function origin(app, { message, user, agent, session_id: session, created_at: created }) {
  return html`${message ? html`<p class="message"><bdi>${visible(message)}</bdi></p>` : ""}
    <p class="quiet"><time datetime=${created}>${when(created)}</time>${user ? html` · by <bdi>${user}</bdi>` : ""}${agent ? html` with <bdi>${agent}</bdi>` : ""}${agent && session
      ? html` · ${sessionLink(app, agent, session, "open the chat")}`
      : ""}</p>`;
}

