/** The thread in which code is highlighted. It answers each text with HTML or null, and its first message says that it can begin. */

import hljs from "highlight.js/lib/common";

const MAX_MARKS = 10_000; // elements, which the page has to make

addEventListener("message", ({ data: { text, language } }) => {
  const html = hljs.getLanguage(language) ? hljs.highlight(text, { language, ignoreIllegals: true }).value : null;
  postMessage(html === null || html.split("<span").length > MAX_MARKS + 1 ? null : html);
});
postMessage("ready");
