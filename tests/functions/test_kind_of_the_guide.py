"""The kind that docs/extending.md shows streams at /c1, although it has no line about streaming."""

import re
from pathlib import Path
from typing import Any

import pytest

from spass.agents.kinds import KINDS, AgentContext
from spass.core.effects import Answer, AssistantReply, Cell, CellResult, Infer, RunCode
from spass.models.types import ChatDelta
from spass.testing.model import in_turn
from tests.functions.gateway import Gateway
from tests.stream_grammar import answer_text, read_events

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def kind_of_the_guide(name: str) -> Any:
    """Return the class ``name``, which a block of the guide defines."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if f"class {name}(" in block)
    names: dict[str, Any] = {"__name__": f"{name}_of_the_guide"}
    exec(code, names)
    return names[name]


@pytest.fixture
def _second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the guide's kind for one test."""
    monkeypatch.setattr(KINDS, "_registered", {})
    KINDS.register("second_look")(kind_of_the_guide("SecondLookAgent"))


@pytest.mark.usefixtures("_second_look")
def test_the_kind_of_the_guide_streams(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "agents" / "careful.yaml").write_text("name: careful\nkind: second_look\nmodel: small\n")
    gateway.model.script = in_turn([[ChatDelta("41")], [ChatDelta("4"), ChatDelta("2")]])
    chat = {"message_id": "m1", "messages": [{"role": "user", "content": "What is 6 * 7?"}]}
    events = read_events(gateway.send("POST", "/c1/agents/careful/chat", body=chat))
    assert answer_text(events) == "42"
    assert "41" not in str([event for event in events if event["type"] == "token"])


def test_the_kind_of_the_guide_that_runs_code_keeps_the_data_out_of_the_prompt() -> None:
    agent = kind_of_the_guide("ProgramAgent")()
    steps = agent.steps("How many?", AgentContext(memory_results=("a", "b")))
    infer = next(steps)
    assert isinstance(infer, Infer)
    assert [message.content.partition("\n")[0] for message in infer.messages] == ["How many?"]
    assert steps.send(AssistantReply("So:\n```python\nprint(len(data))\n```")) == RunCode(
        Cell("print(len(data))", variables={"data": ["a", "b"]})
    )
    with pytest.raises(StopIteration) as end:
        steps.send(CellResult("2\n"))
    assert end.value.value == Answer("2\n")
    assert agent.needs == "code"
