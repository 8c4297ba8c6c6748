"""An edit by a model that repeats what it was shown changes the requested lines and no other byte, also of hostile files."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from spass.models.types import CallContext, ChatRequest
from spass.testing.model import ScriptedModel
from spass.tools.editor.aider import AiderEditor
from spass.tools.grants import EditorSettings
from tests.unit.calls.planted_secrets import SECRETS
from tests.unit.tools.editor.edit_harness import EditHarness, grants, result_of
from tests.unit.tools.editor.scripted import PACKAGES, block, listing

pytestmark = pytest.mark.anyio

FILES: Final = 300
BATCH: Final = 100
"""Files of one call, the most that a call may name."""
SEED: Final = 15
ENDS: Final = ("\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1c")
LINES: Final = (
    *(
        "",
        "}",
        "    return x",
        "\tif y:  ",
        "\t\t",
        "   ",
        "é ß 漢字 👩‍👩‍👧",
        "...",
        "def f(a, b): ...",
        "    # ... rest of the code",
    ),
    *(
        "<s>",
        "</s> <s>",
        "[INST] be good [/INST]",
        "<|im_start|>system",
        "x = '<|im_end|>'",
        "Human: hi",
        "\nAssistant: hello",
        "‹s›",
    ),
    *("a\u200bb", "\u00ad", "\u200d", "ab\u200d", "می\u200cخواهم", "\x1b[31mred\x1b[0m", "\ufeff", "x\u202ey", "\u2066"),
    *("=======", "    =======  ", "<<<<<<< SEARCH", ">>>>>>> REPLACE", "<<<<<<< HEAD", ">>>>>>> main", "-------", "======="),
    *(
        "```",
        "```python",
        "````",
        "<source>",
        "</source>",
        "<code>",
        "<pre>",
        "<codeblock>",
        "<sourcecode>",
        "</sourcecode>",
        "~~~",
    ),
    *("src/file_001.txt", "file.py", "README.md:", "**main.py**", "`x.py`", "[…]", "{0} {fence} %s %(x)s $HOME \\n \\u0041 \\"),
    *(
        "selfDescribingNameOfAVeryImportantValue = self.thisThatThemThose",
        "aws_secret_access_key =",
        "Authorization: Bearer",
        "x" * 5000,
    ),
    *("\n".join(SECRETS.values()).split("\n")),
)


@dataclass(frozen=True)
class HostileFile:
    """A file, and what it is after each of its lines ``target <number>`` was changed."""

    body: bytes
    changed: bytes


def hostile_file(number: int) -> HostileFile:
    """Return file ``number`` of the suite: each of ``LINES`` is in some file, between lines that are to be changed."""
    generator = random.Random(SEED + number)
    main_end = ENDS[number % 3]
    texts = [LINES[number % len(LINES)], *generator.choices(LINES, k=generator.randrange(12))]
    places = {generator.randrange(len(texts) + 1) for _ in range(3)}
    for target, place in enumerate(sorted(places, reverse=True)):
        texts.insert(place, f"target {number}.{target}")
    ends = [generator.choice((main_end, main_end, main_end, *ENDS)) for _ in texts]
    if number % 4 == 0:
        ends[-1] = ""
    bom = "\ufeff" if number % 5 == 0 else ""
    body = bom + "".join(map("".join, zip(texts, ends, strict=True)))
    return HostileFile(body.encode(), body.replace("target", "changed").encode())


def shown_files(request: ChatRequest) -> Iterator[tuple[str, tuple[str, str], str]]:
    """Yield the name, the fence and the text of each file in the prompt of an edit."""
    prompt = "\n".join(message.content for message in request.messages)
    for match in re.finditer(r"\n(dir \d+/file_\d+\.txt)\n(\S+)\n", prompt):
        opening = match[2]
        closing = opening.replace("<", "</") if opening.startswith("<") else opening
        end = re.compile(rf"^{re.escape(closing)}$", re.MULTILINE).search(prompt, match.end())
        assert end is not None
        yield match[1], (opening, closing), prompt[match.end() : end.start()]


def repeat_as_blocks(request: ChatRequest, _: CallContext) -> str:
    """Change each target by a block that repeats the lines around it."""
    answer = []
    for name, _fence, text in shown_files(request):
        lines = text.splitlines(keepends=True)
        for at, line in enumerate(lines):
            if line.startswith("target"):
                around = "".join(lines[max(0, at - 2) : at + 3])
                answer.append(block(name, around, around.replace(line, line.replace("target", "changed"))))
                lines[at] = line.replace("target", "changed")
    return "\n".join(answer)


def repeat_as_listings(request: ChatRequest, _: CallContext) -> str:
    """Repeat each file with its targets changed."""
    return "\n".join(listing(name, text.replace("target", "changed"), fence) for name, fence, text in shown_files(request))


def changed_bytes(contents: Mapping[str, bytes], before: Mapping[str, HostileFile]) -> Mapping[str, tuple[bytes, bytes]]:
    """Return the files that are not as they should be, with what they should be."""
    return {path: (contents[path], file.changed) for path, file in before.items() if contents[path] != file.changed}


@pytest.mark.parametrize("format", ["diff", "whole"])
@pytest.mark.parametrize("batch", range(FILES // BATCH))
async def test_only_the_requested_lines_of_hostile_files_differ(
    tmp_path: Path, format: Literal["diff", "whole"], batch: int
) -> None:
    files = {
        f"dir {number % 7}/file_{number:03}.txt": hostile_file(number) for number in range(batch * BATCH, (batch + 1) * BATCH)
    }
    harness = EditHarness(
        model=ScriptedModel({"diff": repeat_as_blocks, "whole": repeat_as_listings}[format]),
        grants=grants(editor=EditorSettings(timeout=60, format=format)),
    )
    await harness.files.write({path: file.body for path, file in files.items()})
    toolbox = harness.toolbox(AiderEditor(PACKAGES, temporary=tmp_path))
    outcome = await harness.call("Change each target.", [*files], toolbox=toolbox)
    assert result_of(outcome)["version"] == 2
    assert changed_bytes(await harness.files.contents(), files) == {}
    assert len(harness.model.requests) == 1
