/** Numbers, sizes, money and times as people read them. */

import { html } from "lit-html";

const NUMBER = new Intl.NumberFormat("en");
const MONEY = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumSignificantDigits: 2 });
const WHEN = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const MAX_DEPTH = 100; // of JSON that is indented
const UNITS = ["bytes", "KB", "MB", "GB"];

/** @param {number} value */
export function number(value) {
  return NUMBER.format(value);
}

/**
 * Return e.g. `1 message` or `2 messages`.
 * @param {number} value
 * @param {string} noun
 */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

const LENGTHS = /** @type {const} */ ([[86_400, "day"], [3600, "hour"], [60, "minute"]]);

/**
 * Return e.g. `7 seconds` or `3 days`, never less than the time that is meant.
 * @param {number} seconds
 */
export function duration(seconds) {
  const [length, noun] = LENGTHS.find(([length]) => seconds >= 2 * length) ?? [1, "second"];
  return count(Math.ceil(seconds / length), noun);
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes === 1) return "1 byte";
  let unit = 0;
  for (; bytes >= 1024 && unit < UNITS.length - 1; unit++) bytes /= 1024;
  return `${unit && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}

/**
 * Show an amount in US dollars with two significant digits. Its title is exact.
 * @param {string} usd a decimal number
 */
export function money(usd) {
  return html`<data value=${usd} title="$${usd}">${MONEY.format(Number(usd))}</data>`;
}

/** @param {string | null} timestamp RFC 3339 */
export function when(timestamp) {
  const date = timestamp ? new Date(timestamp) : null;
  return date && !Number.isNaN(date.getTime()) ? WHEN.format(date) : "";
}

/**
 * Return the exact sum of decimal strings.
 * @param {string[]} amounts e.g. `0.00017412`
 */
export function sum(amounts) {
  const places = Math.max(0, ...amounts.map((amount) => amount.split(".")[1]?.length ?? 0));
  const total = amounts.reduce((so, amount) => {
    const [whole, part = ""] = amount.split(".");
    return so + BigInt(whole + part.padEnd(places, "0"));
  }, 0n);
  const digits = total.toString().padStart(places + 1, "0");
  return places ? `${digits.slice(0, -places)}.${digits.slice(-places)}`.replace(/\.?0+$/, "") : digits;
}

/**
 * Return a value as JSON for people, with a line for each entry unless it is nested very deeply: the indentation would fill the memory.
 * @param {unknown} value
 */
export function pretty(value) {
  try {
    return JSON.stringify(value, null, isDeep(value) ? 0 : 2) ?? "";
  } catch {
    return "This is nested too deeply to be shown.";
  }
}

/** @param {unknown} value */
function isDeep(value) {
  let level = [value];
  for (let depth = 0; level.length; depth++) {
    if (depth > MAX_DEPTH) return true;
    level = level.flatMap((one) => (one && typeof one === "object" ? Object.values(one) : []));
  }
  return false;
}

/**
 * Return a text of at most `length` characters, with an ellipsis if something is missing.
 * @param {string} text
 * @param {number} length
 */
export function shorten(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
