/** File trees that open folder by folder. */

import { number, size } from "./format.js";
import { long } from "./long.js";
import { visible } from "./visible.js";
import { html } from "lit-html";

/**
 * @typedef {{path: string, type: string, size: number | null}} Entry
 * @typedef {{name: string, path: string, entry: Entry | null, children: Map<string, Node>}} Node
 */

const MAX_ENTRIES = 500; // of one folder

/**
 * @param {string} root
 * @param {Entry[]} entries by path
 * @param {boolean} truncated
 * @param {((path: string) => string) | null} [link] returns the address of a file
 * @returns {import("./resource.js").Content}
 */
export function fileTree(root, entries, truncated, link = null) {
  const top = nest(entries, root);
  return html`<div class="tree">${root ? html`<p><bdi>${visible(root)}</bdi></p>` : ""} ${top.children.size ? folder(top, link) : html`<p class="quiet">Empty.</p>`}
    ${truncated ? html`<p class="quiet">The list was cut.</p>` : ""}</div>`;
}

/**
 * @param {Node} node
 * @param {((path: string) => string) | null} link
 * @returns {import("./resource.js").Content}
 */
function folder(node, link) {
  return items([...node.children.values()], link);
}

/**
 * Return the first nodes, and offer the others part by part.
 * @param {Node[]} nodes
 * @param {((path: string) => string) | null} link
 * @returns {import("./resource.js").Content}
 */
function items(nodes, link) {
  const others = nodes.length - MAX_ENTRIES;
  return html`<ul>${nodes.slice(0, MAX_ENTRIES).map((child) => html`<li>${item(child, link)}</li>`)}</ul>
    ${others > 0 ? long(`${number(others)} more`, () => items(nodes.slice(MAX_ENTRIES), link)) : ""}`;
}

/**
 * @param {Node} node
 * @param {((path: string) => string) | null} link
 */
function item(node, link) {
  const isFolder = node.children.size > 0 || node.entry?.type === "directory";
  if (isFolder) return node.children.size ? long(html`<bdi>${visible(node.name)}/</bdi>`, () => folder(node, link)) : html`<bdi>${visible(node.name)}/</bdi>`;
  const bytes = typeof node.entry?.size === "number" ? html` <span class="quiet">${size(node.entry.size)}</span>` : "";
  return html`${link ? html`<a href=${link(node.path)}><bdi>${visible(node.name)}</bdi></a>` : html`<bdi>${visible(node.name)}</bdi>`}${bytes}`;
}

/**
 * @param {Entry[]} entries
 * @param {string} root
 * @returns {Node}
 */
function nest(entries, root) {
  /** @type {Node} */
  const top = { name: "", path: "", entry: null, children: new Map() };
  const prefix = root && root !== "." ? `${root.replace(/\/$/, "")}/` : "";
  for (const entry of entries) {
    const path = String(entry?.path ?? "");
    let node = top;
    const parts = (path.startsWith(prefix) ? path.slice(prefix.length) : path).split("/");
    for (const name of parts) {
      let child = node.children.get(name);
      if (!child) node.children.set(name, (child = { name, path, entry: null, children: new Map() }));
      node = child;
    }
    node.entry = entry;
    node.path = path;
  }
  return top;
}
