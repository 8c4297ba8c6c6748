/** Send one file to the bucket with a presigned form. It knows nothing of the page. */

import { ApiError } from "./errors.js";
import { size } from "./format.js";

/** The types of files that the gateway ingests, by the end of their names. */
export const TYPES = new Map([
  [".jsonl", "application/jsonl"],
  [".csv", "text/csv"],
  [".txt", "text/plain"],
  [".md", "text/markdown"],
]);

/** The largest file that the gateway accepts, in bytes. */
export const MAX_BYTES = 5 * 1024 ** 3;

const STALL_MS = 120_000; // without a sign of life of the connection

/**
 * Return the rule that a file breaks, or null.
 * @param {{name: string, size: number}} file
 */
export function brokenRule(file) {
  if (!TYPES.has(ending(file.name))) return `Its name must end in ${[...TYPES.keys()].join(", ")}.`;
  if (file.size === 0) return "It is empty.";
  if (file.size > MAX_BYTES) return `It has ${size(file.size)}; at most ${size(MAX_BYTES)} are allowed.`;
  return null;
}

/**
 * Return the body of the request for a form.
 * @param {File} file
 */
export function description(file) {
  return { filename: file.name, content_type: TYPES.get(ending(file.name)), size: file.size };
}

/**
 * Send a file. `fetch` reports no progress of sending, so this uses XMLHttpRequest. It sends no token and no cookie.
 * @param {{url: string, fields: Record<string, string>}} form
 * @param {File} file
 * @param {(sent: number) => void} progress gets the bytes that were sent
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 * @throws {ApiError} `upload_refused`: the bucket refused the file. `upload_lost`: the connection broke off, or nothing moved for two minutes
 */
export function sendForm({ url, fields }, file, progress, signal) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) data.append(name, value);
  data.append("file", file); // the bucket ignores fields after the file
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    /** @type {number | undefined} */
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => request.abort(), STALL_MS);
    };
    const cancel = () => request.abort();
    /** @param {() => void} settle */
    const finish = (settle) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", cancel);
      settle();
    };
    const lose = () => reject(signal.aborted ? new DOMException("The file was cancelled.", "AbortError") : lost());
    request.upload.onprogress = (event) => {
      watch();
      progress(Math.min(event.loaded, file.size)); // the fields count too
    };
    request.onload = () => finish(() => (request.status >= 200 && request.status < 300 ? resolve() : reject(refusal(request))));
    request.onerror = () => finish(lose);
    request.onabort = () => finish(lose);
    signal.addEventListener("abort", cancel);
    request.open("POST", url);
    watch();
    request.send(data);
  });
}

/** @param {string} name */
function ending(name) {
  return name.slice(name.lastIndexOf(".")).toLowerCase();
}

function lost() {
  return new ApiError(0, "upload_lost", "The connection to the bucket broke off, or the file cannot be read any more.");
}

/** @param {XMLHttpRequest} request */
function refusal(request) {
  const reason = /<Message>([^<]{1,200})/.exec(request.responseText)?.[1] ?? "";
  return new ApiError(request.status, "upload_refused", `The bucket refused the file. ${reason}`.trim());
}
