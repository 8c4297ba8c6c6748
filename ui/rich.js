/** Blocks that tools make for people: diffs, file trees and files. */

import { codeBlock } from "./code.js";
import { diff } from "./diff.js";
import { fileTree } from "./tree.js";
import { visible } from "./visible.js";
import { html } from "lit-html";

/** @type {WeakMap<object, import("./resource.js").Content>} a block does not change, and its code is highlighted once */
const shown = new WeakMap();

/**
 * @param {any} block as docs/workspaces.md lists them
 * @returns {import("./resource.js").Content}
 */
export function richBlock(block) {
  if (!block || typeof block !== "object") return "";
  let content = shown.get(block);
  if (content === undefined) shown.set(block, (content = show(block)));
  return content;
}

/**
 * @param {any} block
 * @returns {import("./resource.js").Content}
 */
function show(block) {
  switch (block.kind) {
    case "diff":
      return diff(block);
    case "file_tree":
      return fileTree(String(block.root ?? ""), Array.isArray(block.entries) ? block.entries : [], block.truncated === true);
    case "file":
      return html`<figure class="file"><figcaption><bdi>${visible(String(block.path))}</bdi></figcaption>
        ${codeBlock(String(block.text ?? ""), String(block.language ?? ""), { firstLine: Number(block.start_line) || 1 })}
        ${block.truncated ? html`<p class="quiet">The file goes on.</p>` : ""}</figure>`;
    default:
      return "";
  }
}
