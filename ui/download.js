/** Files that the user keeps. They are saved, and never opened in the page. */

import { ApiError } from "./errors.js";

const KEPT = 60_000; // ms until the browser has surely read a blob

/**
 * Return the whole body of an answer.
 * @param {Response} response
 * @throws {ApiError} the answer broke off
 */
export async function wholeBody(response) {
  try {
    return await response.blob();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "offline", "The gateway's answer broke off.");
  }
}

/**
 * Save bytes as a file.
 * @param {Blob} blob
 * @param {string} name
 */
export function save(blob, name) {
  const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" })); // no type that a browser would open
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.rel = "noopener noreferrer";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), KEPT);
}
