"""The kind ``native_openhands``: the model acts by Python code and by tool calls (Wang et al. 2024, *Executable Code Actions
Elicit Better LLM Agents*, https://arxiv.org/abs/2402.01030), and reads the pages that the input names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from spass.agents.kinds.base import (
    AgentContext,
    BaseAgent,
    CallFormat,
    Correction,
    Need,
    RunCells,
    Step,
    ToolUsingAgent,
    parameter,
)
from spass.agents.kinds.code_blocks import MAX_BLOCKS, PYTHON, Block, block_markers, cells_as_text, split_blocks, write_action
from spass.agents.kinds.markers import Scanner, shown_text
from spass.agents.kinds.protocols import REACT, WrittenCall, observation, parse_reply
from spass.agents.kinds.written_arguments import arguments_text
from spass.agents.kinds.written_calls import describe_tools, spoken, to_tool_call
from spass.agents.kinds.written_urls import written_urls
from spass.core.effects import (
    Answer,
    AssistantReply,
    CallTools,
    Cell,
    FetchPage,
    Infer,
    Page,
    RunCode,
    Steps,
    ToolOutcome,
    VisibleAfter,
    user,
)
from spass.core.json import InvalidJson, dump, read_object
from spass.core.messages import CUT_OFF, MAX_OUTPUT_TOKENS, Message, Role, ToolSpec

PAGE_CHARACTERS: Final = 4000
"""Characters of the text of a page that the model reads."""

_TAG: Final = "<tool_call>"
_SHOW: Final = VisibleAfter(
    (), (REACT.thought, REACT.action, REACT.input, REACT.final, REACT.observation, _TAG, *block_markers(PYTHON))
)

_CODE: Final = """\
You can run Python code. Write it in a block:

```python
print(sum(range(10)))
```

All such blocks of a reply run in their order, in one interpreter that keeps its variables until you have answered. It has the
standard library of Python, but no network, no processes, no threads and no files except those that it writes. The next message
begins with "Output:" and contains what the code printed, so print what you need to see. Never write an output yourself.

When you know the answer, reply with it, without such a block. Code that the user shall read and that must not run belongs in a
block without the word python."""
_TOOLS: Final = f"""\
You can also call the tools below by function calling. If you cannot call functions, write one call in a reply and then stop:

{REACT.action} the name of one tool
{REACT.input} its arguments as one JSON object

The next message then begins with "{REACT.observation}" and contains the tool's result. Never write an observation yourself.
Do not call tools and write code in the same reply. The tools are:"""
_HOW_TO_CONTINUE: Final = (
    f'{REACT.observation} Your reply has no answer and no complete call. Call a tool with "{REACT.action}" and "{REACT.input}", '
    "run code in a block of Python, or write your answer without both."
)


@dataclass(frozen=True, kw_only=True)
class NativeOpenHandsAgent(ToolUsingAgent):
    """Solve tasks with Python code and tools, and read the pages that the message names."""

    needs: ClassVar[Need | None] = "code"

    max_tokens: int = parameter(2048, "Tokens of one reply of the model, at most.", ge=1, le=MAX_OUTPUT_TOKENS)
    max_turns: int = parameter(3, "Model calls of one turn, at most.", ge=1, le=100)

    def steps(self, input: str, context: AgentContext) -> Steps:
        calls = _CodeAndCalls(context.specs)
        messages = calls.opening(self, input, context)
        for url in written_urls(input):
            page: Page = yield FetchPage(url)
            messages = (*messages, _describe_page(url, page))
        return (yield from self.tool_loop(messages, calls))


def _describe_page(url: str, page: Page) -> Message:
    text = page.text[:PAGE_CHARACTERS] if page.error is None else f"[It could not be read. {page.error}]"
    return user(f"The page {url}:\n\n{text}", data=True)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply, read. ``text`` are the words before the first block or call. ``answer`` is set if the reply has neither."""

    text: str
    blocks: tuple[str, ...] = ()
    call: WrittenCall | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class _CodeAndCalls(CallFormat):
    """Code in blocks, native calls, and calls that the model writes. Code and calls of a reply that was cut off are dropped."""

    specs: Sequence[ToolSpec]

    def opening(self, agent: BaseAgent, input: str, context: AgentContext) -> tuple[Message, ...]:
        tools = f"{_TOOLS}\n\n{describe_tools(self.specs)}" if self.specs else ""
        prompt = "\n\n".join(filter(str.strip, (agent.system_prompt, _CODE, tools)))
        past = replace(context, conversation=cells_as_text(context.conversation))
        return replace(agent, system_prompt=prompt).opening(input, past)

    def infer(self, messages: tuple[Message, ...]) -> Infer:
        return Infer(messages, show=_SHOW)

    def read(self, reply: AssistantReply) -> Step:
        parsed = self._parse(reply.content)
        if reply.tool_calls:
            return CallTools(reply.tool_calls, parsed.text)
        if parsed.answer is not None or reply.finish_reason in CUT_OFF:
            return Answer(parsed.text if parsed.answer is None else parsed.answer)
        if parsed.blocks:
            texts = (parsed.text, *[""] * len(parsed.blocks))
            cells = (RunCode(Cell(code), words) for code, words in zip(parsed.blocks[:MAX_BLOCKS], texts, strict=False))
            return RunCells(tuple(cells), parsed.text, max(0, len(parsed.blocks) - MAX_BLOCKS))
        if parsed.call is not None:
            return CallTools((to_tool_call(parsed.call, self.specs),), parsed.text)
        return Correction((*spoken(parsed.text), user(_HOW_TO_CONTINUE)), parsed.text)

    def record(self, reply: AssistantReply, step: CallTools, outcomes: Sequence[ToolOutcome]) -> tuple[Message, ...]:
        text = step.text or ""
        if reply.tool_calls:
            asked = Message(Role.ASSISTANT, text, tuple(outcome.call for outcome in outcomes))
            return (asked, *(outcome.message for outcome in outcomes))
        (call,), (outcome,) = step.calls, outcomes
        return (Message(Role.ASSISTANT, write_action(text, call)), observation(outcome.message.content, REACT))

    def _parse(self, text: str) -> _Reply:
        """Read a reply: its blocks before the first imagined observation, or else its call, or else the answer."""
        pieces: list[str | Block] = []
        for piece in split_blocks(text, PYTHON):
            before, after = _partition(piece, REACT.observation) if isinstance(piece, str) else (piece, None)
            pieces.append(before)
            if after is not None:
                break
        blocks = tuple(piece.code for piece in pieces if isinstance(piece, Block))
        if not blocks:
            return self._parse_call(text)
        words = pieces[0] if isinstance(pieces[0], str) else ""
        for marker in (_TAG, REACT.final):  # what follows them is not done, because the blocks run
            words, _ = _partition(words, marker)
        parsed = parse_reply(words, REACT)
        return _Reply(parsed.text if parsed.answer is None else parsed.answer, blocks)

    def _parse_call(self, text: str) -> _Reply:
        """Read a reply without blocks. A final answer counts more than a call, and the first call counts. A call is marked in one
        of two ways. An agent without tools makes no calls, so what looks like one is part of its answer."""
        before, tagged = _partition(_partition(text, REACT.observation)[0], _TAG)
        if tagged is None or shown_text(text, REACT.show) is not None:
            before, tagged = text, None
        parsed = parse_reply(before, REACT)
        words = parsed.text if parsed.answer is None else parsed.answer
        if not self.specs:
            return _Reply(words, answer=text.strip() if tagged is not None or parsed.answer is None else words)
        if tagged is not None and parsed.call is None:
            return _Reply(words, call=_tagged_call(tagged))
        return _Reply(words, call=parsed.call, answer=parsed.answer)


def _partition(text: str, marker: str) -> tuple[str, str | None]:
    """Return the text before and after the first ``marker`` at the start of a line. Without one, the latter is None."""
    scanner = Scanner((marker,))
    before: list[str] = []
    for piece in (*scanner.feed(text), *scanner.flush()):
        if not isinstance(piece, str):
            return "".join(before), text[len("".join(before)) + len(piece.text) :]
        before.append(piece)
    return text, None


def _tagged_call(text: str) -> WrittenCall | None:
    """Return the call in ``text``, which follows its tag, or None if it is not an object with a name."""
    try:
        call = read_object(arguments_text(text, None))
    except InvalidJson:
        return None
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name.strip():
        return None
    return WrittenCall(name.strip(), arguments if isinstance(arguments, str) else dump(arguments))
