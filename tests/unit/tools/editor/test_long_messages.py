"""All files of an edit may hold more than one message of a model call: they reach the model in several messages."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import Message, Role
from spass.models.types import CallContext, ChatRequest
from spass.tools.builtin.aider_edit import divide_long_messages
from spass.tools.editor.aider import AiderEditor
from spass.tools.editor.texts import MAX_EDIT_BYTES
from tests.unit.tools.editor.edit_harness import EditHarness, error_of, result_of
from tests.unit.tools.editor.scripted import PACKAGES, block

ROLES = st.sampled_from((Role.USER, Role.ASSISTANT))


@given(st.lists(st.builds(Message, ROLES, st.text("ab\n", max_size=60)), max_size=4))
def test_no_message_is_too_long_and_none_loses_a_character(messages: list[Message]) -> None:
    for message in messages:
        first, *more = divide_long_messages([message], limit=10)
        parts, between = [first, *more[1::2]], more[::2]
        assert "".join(part.content for part in parts) == message.content
        assert {part.role for part in parts} == {message.role}
        assert all(len(part.content) <= 10 for part in parts)
        assert message.role not in {other.role for other in between}
        assert all(part.content.endswith("\n") or "\n" not in part.content for part in parts[:-1])
    assert divide_long_messages(messages, limit=10) == [
        part for message in messages for part in divide_long_messages([message], limit=10)
    ]


@pytest.mark.anyio
async def test_an_edit_of_as_much_text_as_is_permitted_reaches_the_model(tmp_path: Path) -> None:
    texts = {name: f"{name}\n".ljust(MAX_EDIT_BYTES // 4 - 1, "x") + "\n" for name in ("a.txt", "b.txt", "c.txt", "d.txt")}
    harness = EditHarness()
    await harness.files.write({name: text.encode() for name, text in texts.items()})
    shown: list[str] = []

    def answer(request: ChatRequest, _: CallContext) -> str:
        shown.extend(message.content for message in request.messages)
        return block("a.txt", "a.txt\n", "b\n")

    harness.model.script = answer
    toolbox = harness.toolbox(AiderEditor(PACKAGES, temporary=tmp_path))
    outcome = await harness.call("Change a.txt.", ["a.txt", "b.txt"], read_only_files=["c.txt", "d.txt"], toolbox=toolbox)
    assert result_of(outcome)["version"] == 2
    whole = "".join(shown).replace("The message continues.", "")
    assert all(text in whole for text in texts.values())
    assert (await harness.files.contents())["a.txt"] == texts["a.txt"].replace("a.txt", "b").encode()
    await harness.files.write({"e.txt": b"12345"})  # the edit made a.txt 4 bytes shorter
    refused = await harness.call("Change a.txt.", [*texts], read_only_files=["e.txt"], toolbox=toolbox)
    assert error_of(refused) == (
        "workspace_limit",
        f"The files of this edit have {MAX_EDIT_BYTES + 1} bytes; all together may have {MAX_EDIT_BYTES}. Name fewer files.",
    )
