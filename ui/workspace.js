/** One workspace: its files, its versions, and a zip in and out. */

import { ArchiveButton, ArchiveForm } from "./archive.js";
import { count, number, size, when } from "./format.js";
import { Resource } from "./resource.js";
import { Restore } from "./restore.js";
import { fragment } from "./router.js";
import { html } from "lit-html";
import { Files } from "./workspace-files.js";
import { VersionDetails, VersionList } from "./workspace-versions.js";

export class Workspace {
  /** @type {VersionDetails | null} */
  #details = null;
  /** @type {"files" | "versions" | "zip"} */
  #tab = "files";
  /** @type {number | null} the version whose files are shown; null: the newest */
  #version = null;
  #app;
  #summary;
  #restore;
  #files;
  #versions;
  #form;
  #button;

  /**
   * @param {import("./app.js").App} app
   * @param {string} id
   */
  constructor(app, id) {
    this.#app = app;
    this.id = id;
    this.#restore = new Restore(app, id, () => this.reload());
    this.#files = new Files(app, id, this.#restore);
    this.#versions = new VersionList(app, id);
    this.#form = new ArchiveForm(app, () => this.reload());
    this.#button = new ArchiveButton(app);
    this.#summary = new Resource(() => app.client.call(`a1/workspaces/${encodeURIComponent(id)}`), (error) => (error && app.refused(error), app.changed()));
    void this.#summary.load();
    this.#versions.load();
  }

  /**
   * Show what the rest of the fragment names: `files/<path…>`, `at/<version>/<path…>`, `versions`, `versions/<version>` or `zip`.
   * @param {string[]} params
   */
  open([tab = "files", ...rest]) {
    this.#restore.reset();
    const isOld = tab === "at" && /^[1-9]\d*$/.test(rest[0] ?? "");
    this.#tab = tab === "versions" || tab === "zip" ? tab : "files";
    this.#version = isOld ? Number(rest[0]) : null;
    const version = this.#tab === "versions" ? (rest[0] ?? null) : null;
    if (this.#details?.version !== version) {
      this.#details?.close();
      this.#details = version ? new VersionDetails(this.#app, this.id, version, this.#restore) : null;
    }
    if (this.#tab === "files") this.#files.open(this.#version, rest.slice(isOld ? 1 : 0).join("/"));
  }

  /** Read what has changed. The result is fulfilled when the newest version is known. */
  reload() {
    this.#versions.load();
    this.#files.reload();
    return this.#summary.load();
  }

  close() {
    this.#summary.close();
    this.#versions.close();
    this.#files.close();
    this.#details?.close();
  }

  render() {
    return html`<div class="panel">
      <p><a href=${fragment("workspaces")}>All workspaces</a></p>
      <header class="panel-head"><h1><bdi>${this.id}</bdi></h1><button type="button" @click=${() => this.reload()}>Refresh</button></header>
      ${this.#summary.show((summary) => this.#content(summary))}
    </div>`;
  }

  /** @param {any} summary */
  #content(summary) {
    const tabs = { files: "Files", versions: "Versions", zip: "Zip" };
    return html`<p class="quiet">Version ${number(summary.version)} · ${count(summary.file_count, "file")} · ${size(summary.total_bytes)} · changed ${when(summary.updated_at)}</p>
      <nav class="tabs" aria-label="Parts of the workspace">${Object.entries(tabs).map(
        ([name, title]) => html`<a href=${fragment("workspaces", this.id, ...(name === "files" ? [] : [name]))} aria-current=${name === this.#tab ? "page" : "false"}>${title}</a>`,
      )}</nav>
      ${this.#restore.render()} ${this.#part(summary)}`;
  }

  /** @param {any} summary */
  #part(summary) {
    if (this.#tab === "files") return this.#files.render();
    if (this.#tab === "zip") return this.#zip(summary);
    return this.#details ? html`<p><a href=${fragment("workspaces", this.id, "versions")}>All versions</a></p>${this.#details.render()}` : this.#versions.render();
  }

  /** @param {any} summary */
  #zip(summary) {
    const send = (/** @type {Event} */ event) => {
      event.preventDefault();
      void this.#form.send(this.id);
    };
    return html`<section aria-labelledby="out"><h2 id="out">Take all files out</h2>${this.#button.render(this.id, summary.version)}</section>
      <section aria-labelledby="in"><h2 id="in">Put files in</h2>
        <form class="fields" @submit=${send}>${this.#form.fields()}
          <button class="primary" ?disabled=${!this.#form.isReady}>${this.#form.busy ? "Sending …" : "Send the zip"}</button></form></section>`;
  }
}
