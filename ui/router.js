/** The view in the address fragment: `#/chat/<agent>/<session>`. */

/**
 * @typedef {object} Place
 * @property {string} view
 * @property {string[]} params
 */

/** @returns {Place} */
export function place() {
  const [, view = "", ...params] = location.hash.slice(1).split("/");
  return { view, params: params.filter(Boolean).map(decode) };
}

/**
 * Return the fragment of a place. Use it as the `href` of links.
 * @param {string} view
 * @param {...string} params
 */
export function fragment(view, ...params) {
  return `#/${[view, ...params.map(encodeURIComponent)].join("/")}`;
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
