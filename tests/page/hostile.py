"""Hostile texts of models, files and documents, and checks of the effects that they must not have.

Every text that would run, run calls ``pwned()`` or loads something from ``evil.example``.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from playwright.sync_api import Page

from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.sites import Site, chat_model

Shown: TypeAlias = Mapping[str, str]

RAW_HTML: Final[Shown] = {
    "script": "<script>pwned()</script>",
    "foreign script": '<script src="https://evil.example/x.js"></script>',
    "script in capitals": "<SCRIPT>pwned()</SCRIPT>",
    "script that is cut": "<script>pwned()",
    "script in a paragraph": "word <script>pwned()</script> word",
    "image handler": "<img src=x onerror=pwned()>",
    "image handler with slashes": "<img/src=x/onerror=pwned()>",
    "foreign image": '<img src="https://evil.example/p.png">',
    "svg handler": "<svg onload=pwned()>",
    "svg script": "<svg><script>pwned()</script></svg>",
    "svg animation": "<svg><a><animate attributeName=href values=javascript:pwned() /><text>x</text></a></svg>",
    "svg use": '<svg><use href="https://evil.example/x.svg#x"/></svg>',
    "math link": '<math><mtext href="javascript:pwned()">x</mtext></math>',
    "mutation by math": "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=pwned()&gt;'>",
    "mutation by noscript": '<noscript><p title="</noscript><img src=x onerror=pwned()>">',
    "mutation by svg": '<svg></p><style><a id="</style><img src=1 onerror=pwned()>">',
    "mutation by form": "<form><math><mtext></form><form><mglyph><style></math><img src onerror=pwned()>",
    "template": "<template><img src=x onerror=pwned()></template>",
    "shadow template": "<div><template shadowrootmode=open><script>pwned()</script></template></div>",
    "frame": '<iframe src="https://evil.example/"></iframe>',
    "frame with a document": '<iframe srcdoc="<script>parent.pwned()</script>"></iframe>',
    "frame with a script address": "<iframe src=javascript:parent.pwned()></iframe>",
    "object": '<object data="https://evil.example/x.swf"></object>',
    "embed": '<embed src="https://evil.example/x">',
    "style": "<style>@import 'https://evil.example/x.css'; body { display: none }</style>",
    "style attribute": '<p style="background:url(https://evil.example/b)">x</p>',
    "stylesheet": '<link rel=stylesheet href="https://evil.example/x.css">',
    "base": '<base href="https://evil.example/">',
    "refresh": '<meta http-equiv=refresh content="0;url=https://evil.example/">',
    "form": '<form action="https://evil.example/"><input autofocus onfocus=pwned()><button>Sign in</button></form>',
    "button with an action": '<button formaction="javascript:pwned()">x</button>',
    "details": "<details open ontoggle=pwned()><summary>x</summary></details>",
    "video": "<video><source onerror=pwned()></video>",
    "audio": '<audio src="https://evil.example/a.mp3" autoplay></audio>',
    "marquee": "<marquee onstart=pwned()>x</marquee>",
    "popover": "<button popovertarget=x>x</button><xss id=x popover onbeforetoggle=pwned()>x</xss>",
    "clobbered names": "<a id=page></a><img name=getElementById><form name=body>",
    "comment": "<!-- --!><img src=x onerror=pwned()> -->",
    "cdata": "<![CDATA[<img src=x onerror=pwned()>]]>",
    "processing instruction": "<?xml-stylesheet href='https://evil.example/x.css'?>",
    "element of the page": '<div id="announcements" role="alert">Sign in again</div>',
    "html in a heading": "# <img src=x onerror=pwned()>",
    "html in a list": "- <img src=x onerror=pwned()>",
    "html in a quote": "> <img src=x onerror=pwned()>",
    "html in a table": "| a |\n|---|\n| <img src=x onerror=pwned()> |",
    "html in code": "`<img src=x onerror=pwned()>`",
    "html in a fence": "```html\n<img src=x onerror=pwned()><script>pwned()</script>\n```",
}
"""Raw HTML in Markdown. The page shows it as it is written."""

LINKS: Final[Shown] = {
    "javascript": "[x](javascript:pwned())",
    "javascript in capitals": "[x](JaVaScRiPt:pwned())",
    "javascript with entities": "[x](&#106;avascript:pwned())",
    "javascript with an entity for the colon": "[x](javascript&colon;pwned())",
    "javascript with a tab": "[x](java&#9;script:pwned())",
    "javascript after a blank": "[x](<  javascript:pwned()>)",
    "javascript after a control": "[x](&#1;javascript:pwned())",
    "javascript as an autolink": "<javascript:pwned()>",
    "data": "[x](data:text/html,<script>pwned()</script>)",
    "data as base64": "[x](data:text/html;base64,PHNjcmlwdD5wd25lZCgpPC9zY3JpcHQ+)",
    "vbscript": "[x](vbscript:pwned())",
    "file": "[x](file:///etc/passwd)",
    "blob": "[x](blob:https://evil.example/1)",
    "other host of the same scheme": "[x](//evil.example/)",
    "backslashes": "[x](\\\\\\\\evil.example/)",
    "plain http": "[x](http://evil.example/)",
    "relative": "[x](#/chat)",
    "user in the address": "[x](https://bank.example@evil.example/)",
    "reference": "[x][y]\n\n[y]: javascript:pwned()",
    "reference with a title": '[x][z]\n\n[z]: data:text/html,x "onmouseover=pwned()"',
}
"""Links that lead nowhere: they are text."""

OTHERS: Final[Shown] = {
    "image": "![x](https://evil.example/i.png)",
    "image by reference": "![x][i]\n\n[i]: https://evil.example/i.png",
    "title that breaks out": '[x](https://evil.example/ "\\" onmouseover=pwned() \\"")',
    "address that breaks out": '[x](https://evil.example/"onmouseover="pwned())',
    "address in angles": "<https://evil.example/?<script>pwned()</script>>",
    "bare address": "https://evil.example/?q=<img/src=x/onerror=pwned()>",
    "homograph": "[apple.com](https://аpple.com/)",
    "text of another host": "[https://bank.example](https://evil.example/)",
    "reversed text": "[\u202eelpmaxe.knab\u202c](https://evil.example/)",
    "invisible text": "[bank\u200b.exa\u2060mple](https://evil.example/)",
    "language that breaks out": '```"><img/src=x/onerror=pwned()>\nx\n```',
    "language as class": "```hljs-x onload=pwned()\nx\n```",
    "entities": "&lt;img src=x onerror=pwned()&gt; &#60;script&#62;pwned()&#60;/script&#62;",
    "null characters": "<scr\u0000ipt>pwned()</scr\u0000ipt>",
    "lone surrogate": "\ufffd<img src=x onerror=pwned()>",
    "template of the page": "${pwned()} {{pwned()}} {{constructor.constructor('pwned()')()}} <%= pwned() %>",
    "markers of the page": "<!--?lit$123$--> <?lit$123$?> lit$123$ ?lit$",
    "style of a table": "| a |\n|:-:|\n| b |",
    "fence that never closes": "```js\npwned()",
}
"""Markdown that is rendered, but does nothing."""

ALL: Final[Shown] = {**RAW_HTML, **{f"link: {name}": text for name, text in LINKS.items()}, **OTHERS}

STRANGE_NAMES: Final = (
    "<img src=x onerror=pwned()>.py",
    "\u202eyp.exe",
    "a\u200bb\u2060.py",
    "javascript:pwned()",
    '"><script>pwned()</script>',
)
"""Names of files, tools, sessions and documents."""

OFFENDERS: Final = """
() => {
  const found = [];
  const tags = new Set(("a bdi blockquote br button code del details div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong " +
    "summary table tbody td th thead tr ul").split(" "));
  const attributes = new Set("href class start rel target tabindex role aria-label aria-hidden type open".split(" "));
  for (const element of document.querySelectorAll(".markdown *")) {
    if (!tags.has(element.localName)) found.push(`element ${element.localName}`);
    for (const { name } of element.attributes)
      if (!attributes.has(name)) found.push(`attribute ${name} of ${element.localName}`);
  }
  for (const link of document.querySelectorAll(".markdown a")) {
    const host = link.querySelector(".host")?.textContent ?? "";
    if (!link.href.startsWith("https://")) found.push(`link ${link.href}`);
    if (!host.includes(new URL(link.href).host)) found.push(`link without its host: ${link.outerHTML}`);
    if (link.rel !== "noopener noreferrer") found.push(`link with rel ${link.rel}`);
  }
  const active = "script, link, iframe, object, embed, img, svg, math, video, audio, base, form[action], style, template";
  for (const element of document.querySelectorAll(active)) {
    const isOwn = element.matches("script[src^='ui/'], link[href^='ui/']");
    if (!isOwn) found.push(`in the page: ${element.outerHTML.slice(0, 80)}`);
  }
  for (const element of document.querySelectorAll("*"))
    for (const { name } of element.attributes)
      if (name.startsWith("on") || name === "style") found.push(`${name} of ${element.localName}`);
  if (globalThis.wasPwned) found.push("code ran");
  return found;
}
"""
WATCH_CODE: Final = "globalThis.pwned = () => { globalThis.wasPwned = true; };"


def offenders(page: Page) -> list[Any]:
    """Return what is in the page although it must not be."""
    found: list[Any] = page.evaluate(OFFENDERS)
    return found


LAST: Final = "The answer ends here."
_GROUP: Final = 12
"""Outputs in one answer."""


def answers() -> list[str]:
    """Return the outputs in groups, as answers. A fence that never closes ends its answer."""
    texts = sorted(ALL.values(), key=lambda text: text.startswith("```js"))
    return ["\n\n".join([*texts[at : at + _GROUP], LAST]) for at in range(0, len(texts), _GROUP)]


def _respond(body: Body) -> Completion:
    """Answer the question "answer 3" with the third answer, in pieces of one to five characters."""
    question = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    text = answers()[int(re.findall(r"\d+", str(question))[-1])]
    return Completion({"content": text}, pieces=re.findall(r"(?s).{1,5}", text))


HOSTILE: Final = Site("hostile", model_handler(_respond), [chat_model("hostile")], [{"name": "mocker", "model": "hostile"}])
"""An agent whose model answers with the hostile outputs."""
