/** The workspaces view: the tenant's workspaces, or one of them. */

import "./shared.js";
import { ArchiveForm } from "./archive.js";
import { ApiError } from "./errors.js";
import { number, size, when } from "./format.js";
import { Pages } from "./pages.js";
import { failure } from "./resource.js";
import { fragment } from "./router.js";
import { html } from "lit-html";
import { Workspace } from "./workspace.js";

const ID = "[A-Za-z0-9][A-Za-z0-9._:\\-]{0,127}";

/**
 * @param {import("./app.js").App} app
 * @returns {import("./app.js").View}
 */
export function createWorkspaces(app) {
  /** @type {Pages<any>} */
  const list = new Pages(app, "a1/workspaces?limit=100", "workspaces");
  const form = new ArchiveForm(app, () => list.load());
  /** @type {Workspace | null} */
  let open = null;
  let newId = "";
  /** @type {unknown} why a workspace could not be made */
  let error = null;

  /** @param {Event} event */
  async function create(event) {
    event.preventDefault();
    const id = newId;
    error = null;
    try {
      if (await exists(id)) error = new ApiError(409, "exists", `There is a workspace “${id}” already. Open it to put files in, or choose another name.`);
      else if (await form.send(id)) app.go(fragment("workspaces", id));
    } catch (failed) {
      if (!app.refused(failed)) error = failed;
    }
    app.changed();
  }

  /** @param {string} id */
  async function exists(id) {
    try {
      await app.client.call(`a1/workspaces/${encodeURIComponent(id)}`);
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.code === "workspace_not_found") return false;
      throw error;
    }
  }

  /** @param {any[]} workspaces */
  function table(workspaces) {
    return html`<div class="wide" tabindex="0" role="region" aria-label="Workspaces"><table class="full">
      <thead><tr><th scope="col">Name</th><th scope="col" class="figure">Files</th><th scope="col" class="figure">Size</th><th scope="col" class="figure">Version</th><th scope="col">Changed</th></tr></thead>
      <tbody>${workspaces.map(
        (one) => html`<tr><th scope="row"><a href=${fragment("workspaces", one.id)}><bdi>${one.id}</bdi></a></th><td class="figure">${number(one.file_count)}</td>
          <td class="figure">${size(one.total_bytes)}</td><td class="figure">${number(one.version)}</td><td><time datetime=${one.updated_at}>${when(one.updated_at)}</time></td></tr>`,
      )}</tbody></table></div>`;
  }

  function overview() {
    return html`<div class="panel">
      <header class="panel-head"><h1>Workspaces</h1><button type="button" @click=${() => list.load()}>Refresh</button></header>
      <p class="quiet">Files that agents and people of your tenant work on. Every change makes a new version.</p>
      ${list.show(table, html`<p class="state">There are no workspaces yet. Make one from a zip below, or ask an agent that has one to write a file.</p>`)}
      <details class="create"><summary>New workspace from a zip</summary>
        <form class="fields" @submit=${create}>
          <label><span>Name <span class="hint">(letters, digits, and . _ : -)</span></span>
            <input type="text" required maxlength="128" pattern=${ID} autocomplete="off" spellcheck="false" .value=${newId}
              @input=${(/** @type {Event} */ event) => (newId = /** @type {HTMLInputElement} */ (event.target).value)}></label>
          ${form.fields(false)} ${error ? failure(error) : ""}
          <button class="primary" ?disabled=${!form.isReady}>${form.busy ? "Sending …" : "Create it"}</button>
        </form></details>
    </div>`;
  }

  return {
    open([id, ...rest]) {
      if (open && open.id !== id) {
        open.close();
        open = null;
      }
      if (id) (open ??= new Workspace(app, id)).open(rest);
      else void list.load();
    },
    close() {
      list.close();
      open?.close();
      open = null;
    },
    render: () => (open ? open.render() : overview()),
  };
}
