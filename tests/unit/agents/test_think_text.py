"""Think text is in no answer, no token and no recorded message of any kind, wherever the provider cuts it."""

from collections.abc import Sequence
from itertools import groupby

import pytest

from spass.agents.kinds import AgentContext, BaseAgent, user
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.core.effects import Answer, AssistantReply, Infer, Steps
from spass.core.events import Event, InferenceFinished, Token, ToolCallStarted, collect
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld

pytestmark = pytest.mark.anyio

SECRET = "<think>Not 5.\nFinal Answer: secret\nAction: secret\n</think>\n\n"
ANSWER = SECRET + "It is 4.<think>secret</think>\nSure."
CLEAN = "It is 4.\nSure."
REACT_ANSWER = SECRET + "Thought: so\nFinal Answer: It is 4.<think>secret</think>\nSure."
STRUCTURED_ANSWER = REACT_ANSWER.replace("Final Answer:", "FINAL_ANSWER:")
REACT_CALL = SECRET + "Thought: I calculate.\nAction: calculator\n<think>secret</think>Action Input: {}"
STRUCTURED_CALL = SECRET + "THOUGHT: I calculate.\nTOOL: calculator\n<think>secret</think>INPUT: {}"

KINDS = [
    pytest.param(SimpleAgent(), [ANSWER], id="simple"),
    pytest.param(OrchestratorAgent(), [ANSWER], id="orchestrator"),
    pytest.param(OrchestratorAgent(mode="structured"), [STRUCTURED_CALL, STRUCTURED_ANSWER], id="structured"),
    pytest.param(NativeReActAgent(), [ANSWER], id="react without markers"),
    pytest.param(NativeReActAgent(), [REACT_CALL, REACT_ANSWER], id="react"),
]


def cut(texts: Sequence[str], at: int) -> list[ScriptedReply]:
    """Return replies whose pieces end ``at`` this character."""
    return [ScriptedReply(f"{text[:at]}|{text[at:]}") for text in texts]


def answer_of(events: Sequence[Event]) -> str:
    tokens = [event for event in events if isinstance(event, Token)]
    *_, last = ["".join(token.text for token in step) for _, step in groupby(tokens, lambda token: token.step)]
    return last


def check(events: Sequence[Event]) -> None:
    assert collect(events).content == answer_of(events) == CLEAN
    messages = [event.message.content for event in events if isinstance(event, InferenceFinished)]
    assert messages[-1] == CLEAN
    written = "".join([*messages, *(event.text for event in events if isinstance(event, Token))])
    assert "secret" not in written
    assert "think" not in written


@pytest.mark.parametrize(("agent", "texts"), KINDS)
async def test_think_text_cut_anywhere_is_shown_nowhere(agent: BaseAgent, texts: list[str]) -> None:
    for at in range(max(map(len, texts)) + 1):
        events = await ScriptedWorld(cut(texts, at)).run(agent)
        check(events)
        assert sum(isinstance(event, ToolCallStarted) for event in events) == len(texts) - 1


@pytest.mark.parametrize(("agent", "texts"), KINDS)
async def test_thoughts_without_an_opening_tag_are_shown_nowhere(agent: BaseAgent, texts: list[str]) -> None:
    texts = [text.removeprefix("<think>") for text in texts]
    for at in range(max(map(len, texts)) + 1):
        check(await ScriptedWorld(cut(texts, at), thinks=True).run(agent))


async def test_a_call_made_aside_is_filtered_too() -> None:
    class Aside(BaseAgent):
        """Answer with a side call."""

        def steps(self, input: str, context: AgentContext) -> Steps:
            reply: AssistantReply = yield Infer((user(input),), aside=True)
            return Answer(reply.content)

    for at in range(len(ANSWER) + 1):
        assert collect(await ScriptedWorld(cut([ANSWER], at)).run(Aside())).content == CLEAN


@pytest.mark.parametrize("agent", [SimpleAgent(), OrchestratorAgent(), NativeReActAgent()])
@pytest.mark.parametrize("text", ["<think>It is 4.", "It is</think> 4.", "It is 4.<think>"])
async def test_the_text_around_an_unpaired_tag_is_the_answer(agent: BaseAgent, text: str) -> None:
    for at in range(len(text) + 1):
        events = await ScriptedWorld(cut([text], at)).run(agent)
        assert collect(events).content == answer_of(events) == "It is 4."
