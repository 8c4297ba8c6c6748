/** The files of a workspace: the tree of one version, and one of its files. */

import { codeBlock } from "./code.js";
import { save, wholeBody } from "./download.js";
import { number, size } from "./format.js";
import { failure, Resource } from "./resource.js";
import { fragment } from "./router.js";
import { fileTree } from "./tree.js";
import { html, render } from "lit-html";

const PAGE = 1000; // entries
const MAX_SHOWN = 1024 * 1024; // bytes
const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * @typedef {{path: string, type: string, size: number | null}} Entry
 * @typedef {{version: number, entries: Entry[], element: HTMLElement}} Tree
 */

export class Files {
  /** @type {Resource<Tree>} */
  #tree;
  /** @type {{key: string, content: Resource<{blob: Blob, element: HTMLElement | null}>} | null} */
  #file = null;
  #path = "";
  /** @type {number | null} null: the newest */
  #version = null;
  /** @type {unknown} */
  #error = null;
  #app;
  #id;
  #restore;

  /**
   * @param {import("./app.js").App} app
   * @param {string} id
   * @param {import("./restore.js").Restore} restore
   */
  constructor(app, id, restore) {
    this.#app = app;
    this.#id = id;
    this.#restore = restore;
    this.#tree = this.#newTree();
  }

  #newTree() {
    return new Resource(() => this.#readTree(), (error) => (error && this.#app.refused(error), this.#openFile(), this.#app.changed()));
  }

  /**
   * Show a file, or the tree alone.
   * @param {number | null} version null: the newest
   * @param {string} path "" for no file
   */
  open(version, path) {
    this.#path = path;
    this.#error = null;
    if (version !== this.#version) {
      this.#version = version;
      this.#tree.close();
      this.#tree = this.#newTree();
    }
    if (this.#tree.value === null) void this.#tree.load();
    else this.#openFile();
  }

  /** Read the tree again, if it has been read. */
  reload() {
    if (this.#tree.value) void this.#tree.load();
  }

  close() {
    this.#tree.close();
    this.#file?.content.close();
  }

  /** The path of the workspace's routes. */
  get #route() {
    return `a1/workspaces/${encodeURIComponent(this.#id)}`;
  }

  async #readTree() {
    const wanted = this.#version === null ? "" : `&version=${this.#version}`;
    /** @type {Tree} */
    const tree = { version: 0, entries: [], element: document.createElement("div") };
    for await (const page of this.#app.client.pages(`${this.#route}/tree?limit=${PAGE}${wanted}`)) {
      tree.version = page.version;
      tree.entries.push(...page.entries);
    }
    const shown = this.#tree.value;
    if (shown?.version === tree.version) return shown; // its folders stay open
    render(html`${fileTree("", tree.entries, false, (path) => this.#address(path))}`, tree.element);
    return tree;
  }

  /** @param {string} path */
  #address(path) {
    const place = this.#version === null ? ["files"] : ["at", String(this.#version)];
    return fragment("workspaces", this.#id, ...place, ...path.split("/"));
  }

  /** The file that is open, as the tree has it. */
  get #entry() {
    return this.#tree.value?.entries.find(({ path, type }) => path === this.#path && type === "file") ?? null;
  }

  /** Read the file that is to be shown, if it is text of a size that can be shown. */
  #openFile() {
    const tree = this.#tree.value;
    const entry = this.#entry;
    const key = `${tree?.version} ${this.#path}`;
    if (this.#file?.key === key) return;
    this.#file?.content.close();
    this.#file = null;
    if (!tree || !entry || (entry.size ?? 0) > MAX_SHOWN) return;
    const content = new Resource(async () => {
      const blob = await this.#fetch(tree.version, entry.path);
      const text = decode(await blob.arrayBuffer());
      return { blob, element: text === null ? null : codeBlock(text, language(entry.path), { firstLine: 1 }) };
    }, (error) => (error && this.#app.refused(error), this.#app.changed()));
    this.#file = { key, content };
    void content.load();
  }

  /**
   * @param {number} version
   * @param {string} path
   */
  async #fetch(version, path) {
    return wholeBody(await this.#app.client.send(`${this.#route}/file?version=${version}&path=${encodeURIComponent(path)}`));
  }

  async #download() {
    const { path } = this.#entry ?? {};
    const version = this.#tree.value?.version;
    if (!path || !version) return;
    this.#error = null;
    try {
      save(this.#file?.content.value?.blob ?? (await this.#fetch(version, path)), path.split("/").at(-1) ?? "file");
    } catch (error) {
      if (!this.#app.refused(error)) this.#error = error;
    }
    this.#app.changed();
  }

  render() {
    return this.#tree.show((tree) => html`
      ${this.#version === null ? "" : html`<p class="state">These are the files of version ${number(tree.version)}. <a href=${fragment("workspaces", this.#id)}>Show the newest</a></p>`}
      <div class="files"><nav aria-label="Files">${tree.element}</nav>${this.#path ? this.#fileView(tree) : html`<p class="quiet">${tree.entries.length ? "Choose a file to read it." : "This version has no files."}</p>`}</div>`);
  }

  /** @param {Tree} tree */
  #fileView(tree) {
    const entry = this.#entry;
    if (!entry) return html`<p class="state failed" role="alert">Version ${number(tree.version)} has no file <bdi>${this.#path}</bdi>. Choose another one, or look for it in an earlier version.</p>`;
    return html`<section class="reader" aria-labelledby="file">
      <div class="panel-head"><h2 id="file"><bdi>${entry.path}</bdi></h2>
        <p class="choice"><span class="quiet">${size(entry.size ?? 0)}</span>
          ${this.#version === null ? "" : html`<button type="button" @click=${() => this.#restore.ask(tree.version, [entry.path])}>Restore this file</button>`}
          <button type="button" @click=${() => this.#download()}>Download</button></p></div>
      ${this.#error ? failure(this.#error, () => void this.#download()) : ""}
      ${this.#file ? this.#file.content.show(({ element }) => (element ? html`${element}` : html`<p class="state">This file is not text. Download it to open it.</p>`))
        : html`<p class="state">This file is larger than 1 MB. Download it to open it.</p>`}
    </section>`;
  }
}

/**
 * Return the text of UTF-8, or null if it is not text.
 * @param {ArrayBuffer} bytes
 */
function decode(bytes) {
  try {
    const text = DECODER.decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/**
 * Return what the highlighter may know of a file's language: the name's extension, or the name.
 * @param {string} path
 */
function language(path) {
  const name = (path.split("/").at(-1) ?? "").toLowerCase();
  return name.split(".").at(-1) ?? name;
}
