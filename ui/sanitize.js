/** The allow-list through which every piece of HTML goes before it becomes part of the page. */

import DOMPurify from "dompurify";

const TAGS = [
  "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong",
  "table", "tbody", "td", "th", "thead", "tr", "ul",
];
const ATTRIBUTES = ["href", "class", "start"];
const CLASS = /^(?:language-[\w+#.-]{1,40}|hljs-[\w-]{1,40}(?: [\w-]{1,40})*|align-(?:left|center|right))$/;

const WORKER = new URL(HIGHLIGHT_WORKER, import.meta.url).href;
/** What the page's policy lets this module make: the HTML that DOMPurify parses, and the address of one worker. */
const policy = /** @type {TrustedTypePolicy | undefined} */ (
  window.trustedTypes?.createPolicy("dompurify", { createHTML: (/** @type {string} */ source) => source, createScriptURL: () => WORKER })
);

DOMPurify.addHook("uponSanitizeAttribute", (_, data) => {
  if (data.attrName === "class" && !CLASS.test(data.attrValue)) data.keepAttr = false;
});

/**
 * Return what the allow-list lets through of some HTML.
 * @param {string} source
 * @returns {DocumentFragment}
 */
export function sanitize(source) {
  return DOMPurify.sanitize(source, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
    ...(policy ? { TRUSTED_TYPES_POLICY: policy } : {}),
  });
}

/** Return the address of the worker that highlights code. */
export function workerAddress() {
  return /** @type {string} */ (/** @type {unknown} */ (policy?.createScriptURL(WORKER) ?? WORKER));
}
