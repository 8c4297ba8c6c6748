"""The kind that docs/agents.md shows streams at /c1, although it has no line about streaming."""

import re
from pathlib import Path
from typing import Any

import pytest

from spass.agents.kinds import KINDS
from spass.llm.types import ChatDelta
from spass.testing.model import in_turn
from tests.functions.gateway import Gateway
from tests.stream_grammar import answer_text, read_events

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"


@pytest.fixture
def _second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the guide's kind for one test."""
    monkeypatch.setattr(KINDS, "_registered", {})
    (code,) = re.findall(
        r"```python\n(from dataclasses import dataclass\n.*?class SecondLookAgent.*?)```", GUIDE.read_text(), re.DOTALL
    )
    names: dict[str, Any] = {"__name__": "second_look_of_the_guide"}
    exec(code, names)
    KINDS.register("second_look")(names["SecondLookAgent"])


@pytest.mark.usefixtures("_second_look")
def test_the_kind_of_the_guide_streams(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "agents" / "careful.yaml").write_text("name: careful\nkind: second_look\nmodel: small\n")
    gateway.model.script = in_turn([[ChatDelta("41")], [ChatDelta("4"), ChatDelta("2")]])
    chat = {"message_id": "m1", "messages": [{"role": "user", "content": "What is 6 * 7?"}]}
    events = read_events(gateway.send("POST", "/c1/agents/careful/chat", body=chat))
    assert answer_text(events) == "42"
    assert "41" not in str([event for event in events if event["type"] == "token"])
