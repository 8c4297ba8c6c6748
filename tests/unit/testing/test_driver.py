"""A kind runs over a scripted model: in this process, and with its code in a sandbox."""

import pytest

from spass.agents.kinds import AgentContext, NativeOpenHandsAgent, OrchestratorAgent, SimpleAgent
from spass.core.errors import InternalError
from spass.core.messages import ToolCallDelta
from spass.models.types import ChatDelta
from spass.sandbox.launchers import missing_for_processes
from spass.testing.driver import scripted_driver
from spass.testing.model import ScriptedModel, in_turn

pytestmark = pytest.mark.anyio


async def test_the_model_answers_and_keeps_the_request() -> None:
    model = ScriptedModel("The capital is Berlin.")
    result = await SimpleAgent(system_prompt="Be brief.").run("Where?", AgentContext(), scripted_driver(model))
    assert (result.content, result.turns) == ("The capital is Berlin.", 1)
    assert [message.content for message in model.requests[0].messages] == ["Be brief.", "Where?"]


@pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes()))
async def test_code_of_the_model_runs() -> None:
    model = ScriptedModel(in_turn(["```python\nprint(6 * 7)\n```", "It is 42."]))
    result = await NativeOpenHandsAgent().run("What is 6 * 7?", AgentContext(), scripted_driver(model))
    assert result.content == "It is 42."
    assert "42" in result.tool_results[0].content


async def test_a_call_of_a_tool_fails_the_turn() -> None:
    model = ScriptedModel([ChatDelta("", (ToolCallDelta(0, "c1", "calculator", "{}"),))])
    with pytest.raises(InternalError, match="no tool 'calculator'"):
        await OrchestratorAgent().run("What is 6 * 7?", AgentContext(), scripted_driver(model))
