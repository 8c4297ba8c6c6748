"""An edit changes nothing but the requested line, whatever characters the file has and in both formats."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import Message
from spass.tools.editor.child.texts import LineEnds, Shape
from tests.unit.tools.editor.scripted import Scripted, listing

pytestmark = pytest.mark.anyio

TARGET = "change this"
CHANGED = "changed that"

BODIES = {
    "plain": "a\nchange this\nb\n",
    "one-line": "change this",
    "no-final-newline": "a\nchange this\nb",
    "ends-at-target": "a\nchange this",
    "crlf": "a\r\nchange this\r\nb\r\n",
    "crlf-no-final": "a\r\nchange this\r\nb",
    "mixed": "a\r\nb\nchange this\nc\r\n",
    "byte-order-mark": "\ufeffa\nchange this\n",
    "mark-and-crlf": "\ufeffchange this\r\nb",
    "form-feed": "a\n\x0c\nclass X:\x0cY\nchange this\n\x0c\x0cb\n",
    "lone-carriage-returns": "a\rb\rc\nchange this\nd\r",
    "separators": "a\x1cb\x1dc\x1ed\x85e\u2028f\u2029g\x0bh\nchange this\nz\n",
    "private-use": "\U00100000\U00100001\nchange this\n\U0010fffd\n",
    "blank-lines": "\n\n\nchange this\n\n\n\n",
    "blanks": "  a  \n\t\t\nchange this\n \n\xa0\u3000x\xa0\n",
    "long-lines": "x" * 200_000 + "\nchange this\n" + "y " * 100_000 + "\n",
    "controls": "\x00\x01\x07\x1b[31m\nchange this\n\x7f\n",
    "name-of-the-file": "file.txt\nchange this\nfile.txt\n",
    "name-of-the-file-first": "# a/file.txt\nchange this\n",
    "dots": "...\nchange this\n    ...\n",
    "headings": "Title\n=====\n\nOther\n=======\nchange this\nLast\n======\n",
    "marks-of-conflicts": "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> main\nchange this\nc\n",
    "fences": "```python\nx\n```\nchange this\n````\n",
    "tags": "<source>\nchange this\n</source>\n<think>\n</think>\n",
    "placeholders": "{fence} {0} %s {{}} \\n\nchange this\n",
    "combined": "\u0065\u0301 \u200d\u200b\ufeff \U0001f468\u200d\U0001f469\nchange this\n",
}
ALONE = [name for name in BODIES if re.match("name|dots|headings|marks|fences|tags|placeholders", name)]
"""The texts that look like a part of the prompt or of an answer. Each has an edit of its own, as it could disturb the others."""
TOGETHER = [name for name in BODIES if name not in ALONE]
EDITS = [[name] for name in ALONE] + [TOGETHER[start::3] for start in range(3)]


def shown(messages: Sequence[Message], path: str, others: Sequence[str] = ()) -> tuple[str, tuple[str, str]]:
    """Return the text of a file as the prompt shows it, and the fence around it. The prompt may show other files after it."""
    prompt = next(
        message.content for message in messages if f"\n{path}\n" in message.content and "added these" in message.content
    )
    opening, _, rest = prompt.split(f"\n{path}\n", 1)[1].partition("\n")
    closing = opening.replace("<", "</")
    for other in others:
        text, separator, _ = rest.partition(f"{closing}\n\n{other}\n{opening}\n")
        rest = f"{text}{closing}\n" if separator else rest
    return rest.rpartition(f"{closing}\n")[0], (opening, closing)


def repeat_whole(messages: Sequence[Message], paths: Sequence[str] = ("a/file.txt",)) -> str:
    return "\n".join(_listing(path, *shown(messages, path, paths)) for path in paths)


def _listing(path: str, text: str, fence: tuple[str, str]) -> str:
    return listing(path, text.replace(TARGET, CHANGED), fence)


def repeat_block(messages: Sequence[Message], paths: Sequence[str] = ("a/file.txt",)) -> str:
    return "\n".join(_block(path, *shown(messages, path, paths)) for path in paths)


def _block(path: str, text: str, fence: tuple[str, str]) -> str:
    lines = text.split("\n")[:-1]
    at = lines.index(TARGET)
    search = "\n".join(lines[at : at + 2 if at + 2 < len(lines) and "====" not in lines[at + 1] else at + 1])
    new = search.replace(TARGET, CHANGED)
    return f"{path}\n{fence[0]}\n<<<<<<< SEARCH\n{search}\n=======\n{new}\n>>>>>>> REPLACE\n{fence[1]}\n"


@pytest.mark.parametrize(("format", "model"), [("diff", repeat_block), ("whole", repeat_whole)])
@pytest.mark.parametrize("names", EDITS, ids=",".join)
async def test_only_the_requested_line_differs(
    tmp_path: Path,
    names: Sequence[str],
    format: Literal["diff", "whole"],
    model: Callable[[Sequence[Message], Sequence[str]], str],
) -> None:
    files = {"a/file.txt" if len(names) == 1 else f"{name}/file.txt": BODIES[name] for name in names}
    scripted = Scripted(tmp_path, [lambda messages: model(messages, [*files])])
    result = await scripted.edit(files, read_only={f"b/{path}": text for path, text in files.items()}, format=format)
    assert result.files == {path: text.replace(TARGET, CHANGED) for path, text in files.items()}


@pytest.mark.parametrize("format", ["diff", "whole"])
async def test_an_answer_with_crlf_edits_a_file_with_either_newline(tmp_path: Path, format: Literal["diff", "whole"]) -> None:
    model = {"diff": repeat_block, "whole": repeat_whole}[format]
    for newline in ("\n", "\r\n"):
        text = newline.join(["a", TARGET, "b", ""])
        scripted = Scripted(tmp_path, [lambda messages: model(messages).replace("\n", "\r\n")])
        result = await scripted.edit({"a/file.txt": text}, format=format)
        assert result.files == {"a/file.txt": text.replace(TARGET, CHANGED)}


async def test_half_a_surrogate_pair_in_an_answer_becomes_a_question_mark(tmp_path: Path) -> None:
    result = await Scripted(tmp_path, [listing("a.txt", "x \ud83d y\n")]).edit({"a.txt": "x\n"}, format="whole")
    assert result.files == {"a.txt": "x ? y\n"}


@given(st.text(alphabet=st.sampled_from("ab \n\r\t\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff\U00100000\U00100001\U0010fffd")))
def test_a_text_returns_unchanged_and_has_only_line_feeds_between(text: str) -> None:
    shape, line_ends = Shape.of(text), LineEnds([text])
    plain = line_ends.hide(shape.remove(text))
    assert plain.splitlines() == plain.split("\n")[: -1 if plain.endswith("\n") else None] or not plain
    assert plain.endswith("\n") or not plain
    assert shape.restore(line_ends.show(plain)) == text
