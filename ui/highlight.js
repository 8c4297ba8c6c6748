/**
 * Highlighting of code, in a worker: a text can be made so that a grammar takes minutes for it, and only the end of its thread stops a
 * regular expression.
 */

import { workerAddress } from "./sanitize.js";

/** @typedef {{text: string, language: string, resolve: (html: string | null) => void}} Job */

const MAX_TEXT = 50_000; // characters
const MAX_TIME = 1_000; // ms for one text

/** @type {Job[]} the first one is in the worker */
const jobs = [];
const MAX_TIMEOUTS = 3; // of one language: one hostile text does not switch it off, and many do not keep a processor busy
/** @type {Map<string, number>} texts that took too long, by language */
const slow = new Map();
/** @type {Worker | null} */
let worker = null;
let isReady = false;
/** @type {number | undefined} */
let timer;

/**
 * Return the HTML of a text with highlighting, or null if it stays as it is: its language is unknown, or it is over its budget of
 * length, time or marks.
 * @param {string} text
 * @param {string} language as the author of the text names it
 * @returns {Promise<string | null>}
 */
export function highlight(text, language) {
  if (text.length > MAX_TEXT) return Promise.resolve(null);
  return new Promise((resolve) => {
    jobs.push({ text, language, resolve });
    if (jobs.length === 1) next();
  });
}

/** Give the first job to the worker. */
function next() {
  const job = jobs[0];
  if (!job) return;
  if ((slow.get(job.language) ?? 0) >= MAX_TIMEOUTS) finish(null);
  else if (!worker) start();
  else if (isReady) {
    worker.postMessage({ text: job.text, language: job.language });
    timer = setTimeout(giveUp, MAX_TIME);
  }
}

/** @param {string | null} html */
function finish(html) {
  clearTimeout(timer);
  jobs.shift()?.resolve(html);
  next();
}

/** Start the worker, which first says that it has its grammars. */
function start() {
  const started = (worker = new Worker(workerAddress(), { type: "module" }));
  isReady = false;
  started.addEventListener("message", ({ data }) => {
    if (started !== worker) return;
    if (isReady) finish(data);
    else {
      isReady = true;
      next();
    }
  });
  started.addEventListener("error", () => {
    if (started === worker) stop(); // a file did not arrive: the next text tries again
  });
}

function giveUp() {
  const { language } = jobs[0];
  slow.set(language, (slow.get(language) ?? 0) + 1);
  stop();
}

/** End the worker, whatever it does, and leave its text as it is. */
function stop() {
  worker?.terminate();
  worker = null;
  finish(null);
}
