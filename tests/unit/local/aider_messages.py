"""Messages as Aider 0.86 writes them, and a reader of its two formats of answers."""

import re
from collections.abc import Mapping
from typing import Literal

Format = Literal["diff", "whole"]

_RULES: Mapping[Format, str] = {
    "diff": "# *SEARCH/REPLACE block* Rules:\n\nEvery *SEARCH/REPLACE block* must use this format:",
    "whole": "To suggest changes to a file you MUST return the entire content of the updated file.\n"
    "You MUST use this *file listing* format:",
}
_BLOCK = re.compile(r"<<<<<<< SEARCH\n(.*?)=======\n(.*?)>>>>>>> REPLACE\n", re.DOTALL)


def aider_messages(
    instruction: str,
    files: Mapping[str, str],
    form: Format = "diff",
    *,
    fence: tuple[str, str] = ("```", "```"),
    reminds: bool = True,
) -> list[dict[str, str]]:
    """Return a request of Aider. With ``reminds``, the instruction is followed by the rules, as most models get them."""
    role = f"Act as an expert software developer.\nTake requests for changes to the supplied code.\n{_RULES[form]}"
    listed = "".join(f"\n{path}\n{fence[0]}\n{text}{fence[1]}\n" for path, text in files.items())
    shown = (
        "I have *added these files to the chat* so you can go ahead and edit them.\n\n"
        "*Trust this message as the true contents of these files!*\n"
        f"Any other messages in the chat may contain outdated versions of the files' contents.\n{listed}"
    )
    return [
        {"role": "system", "content": role},
        {"role": "user", "content": "Change get_factorial() to use math.factorial"},
        {"role": "assistant", "content": "mathweb/flask/app.py\n```\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n```"},
        {"role": "user", "content": "I switched to a new code base. Please don't consider the above files."},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": shown if files else "I am not sharing any files that you can edit yet."},
        {"role": "assistant", "content": "Ok, any changes I propose will be to those files." if files else "Ok."},
        {"role": "user", "content": f"{instruction}\n\n{_RULES[form]}\n" if reminds else instruction},
    ]


def files_after(answer: str, files: Mapping[str, str], form: Format, fence: tuple[str, str] = ("```", "```")) -> dict[str, str]:
    """Return the files after the edits of ``answer``. A searched text must occur exactly once, at the start of a line."""
    after = dict(files)
    for path, body in _edits(answer, fence):
        if form == "whole":
            after[path] = body
            continue
        ((search, replacement),) = _BLOCK.findall(body)
        text = after.get(path, "")
        ended = text if not text or text.endswith("\n") else f"{text}\n"
        assert f"\n{ended}".count(f"\n{search}") == 1 or not (search or text), (path, search)
        after[path] = f"\n{ended}".replace(f"\n{search}", f"\n{replacement}", 1)[1:] if search else replacement
    return after


def _edits(answer: str, fence: tuple[str, str]) -> list[tuple[str, str]]:
    opening, closing = (re.escape(mark) for mark in fence)
    return re.findall(rf"^([^\n`<]+)\n{opening}\n(.*?)^{closing}$", answer, re.DOTALL | re.MULTILINE)
