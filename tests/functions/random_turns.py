"""Random turns: what a model answers in one turn, how its tools fail, and whether the session is compacted meanwhile.

A seed always gives the same turn. The same turn can be sent as a blocking request and as a stream, each to its own session.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from spass.agents.kinds.foreign import ForeignAgent
from spass.agents.kinds.registry import KINDS
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.errors import AttemptFailed, BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.store.invocation import CALL_PLAN, PendingCall, ServiceCall
from spass.testing.model import Answer, Deltas, count_letters
from tests.functions.gateway import Gateway

T = TypeVar("T")

SUMMARY_MODEL: Final = "dear"
"""The model that writes summaries. No agent uses it."""
UNLUCKY: Final = "unlucky"
"""A query that contains this word cannot be embedded."""

_TEXTS: Final = (
    "Thought: I need it.\n",
    'Action: calculator\nAction Input: {"expression": "2+2"}\n',
    'ACTION: rag_query\naction input: {"index_id": "notes", "query": "alpha"}\n',
    "ACTION: nothing\naction input: {}\n",
    "Action: calculator\n",
    "Observation: 5\n",
    "Final Answer: 4",
    "TOOL: calculator\nINPUT: 2+2\n",
    "FINAL_ANSWER: four",
    "<think>hidden</think>",
    "<think>open ",
    "plain text ",
    'quotes " and \\ and \u2028 ',
    "über 🙂\n",
    "half \ud83d a pair, \x00 \x1b \x85 \r\n and \u2029 ",
    "\n",
    "```python\nkept = calculator(expression='6*7')\nprint(kept['result'])\n```\n",
    "```repl\nprint(1 / 0)\n```\n",
    "```python\nprint(llm_query('alpha'))\n```\n",
    "```python\nFINAL({'a': 1})\n```",
)
_CALLS: Final = (
    ("calculator", '{"expression": "2+2"}'),
    ("calculator", '{"expression": "6*7"}'),
    ("calculator", '{"expression": "1/0"}'),
    ("calculator", "{"),
    ("rag_query", '{"index_id": "notes", "query": "alpha"}'),
    ("rag_query", '{"index_id": "notes", "query": "an unlucky one"}'),
    ("rag_query", '{"index_id": "absent", "query": "alpha"}'),
    ("absent_tool", "{}"),
    ("absent\ntool \ud83d", '{"a": "\\ud83d\\n"}'),
)
MODEL_KINDS: Final = [key for key in list(KINDS.keys()) if not issubclass(KINDS.get(key), ForeignAgent)]
"""The kinds that call models. Foreign agents make their own calls; test_foreign_agents has their turns."""
SESSION_KINDS: Final = [kind for kind in MODEL_KINDS if not KINDS.get(kind).remembers]
"""The kinds whose sessions a client creates. That of an operator is found by its name: see ``test_operators``."""
_TOOLS: Final = "tools: [calculator, rag_query]\nmax_turns: 3\n"
_IDS: Final = re.compile(r"\b(?:ses|sum|msg|turn|req)_\w+|\bcall_\w+")


class InLoop:
    """A plan for ``CALL_PLAN`` that makes every AWS call at once, without a thread and without faults."""

    in_threads = False

    async def around(self, _: ServiceCall, run: PendingCall[T]) -> T:
        return await run()


@contextmanager
def without_threads() -> Iterator[None]:
    """Make the AWS calls of the block without threads."""
    token = CALL_PLAN.set(InLoop())
    try:
        yield
    finally:
        CALL_PLAN.reset(token)


@dataclass(frozen=True, slots=True)
class RandomTurn:
    """One turn. ``answers`` are those of the agent's model calls, in order; the last one repeats.

    ``characters`` is the length of the session's first message: from 25,600 on, the next turn compacts the session before its
    first model call. If ``fails_to_summarise``, a compaction fails.
    """

    kind: str
    answers: Sequence[Answer]
    characters: int
    fails_to_summarise: bool

    @classmethod
    def of(cls, random: Random, kind: str) -> "RandomTurn":
        answers: list[Answer] = [_answer(random) for _ in range(random.randint(1, 4))]
        characters = random.choice([0] * 5 + [20_000, 26_000])
        if random.random() < (0.7 if characters == 20_000 else 0.05):
            answers.insert(random.randint(0, len(answers)), BackendContextLength("Too long.", status=400))
        done = [ChatDelta("Final Answer: Done.", finish_reason=FinishReason.STOP, usage=TokenUsage(3, 1))]
        return cls(kind, [*answers, done], characters, random.random() < 0.2)


def _answer(random: Random) -> Deltas:
    """Return one answer of a model: text in pieces, tool calls in pieces, a refusal, a finish reason, or a failure."""
    text = "".join(random.choices(_TEXTS, k=random.randint(0, 4)))
    calls = random.choices(_CALLS, k=random.choice([0, 1, 1, 2, 3]))
    deltas: list[ChatDelta | BaseException] = [ChatDelta(piece) for piece in _pieces(random, text)]
    for index, (name, arguments) in enumerate(calls):
        deltas.append(ChatDelta(tool_calls=(ToolCallDelta(index, f"call_{index}", name),)))
        deltas += [ChatDelta(tool_calls=(ToolCallDelta(index, arguments=piece),)) for piece in _pieces(random, arguments)]
    if random.random() < 0.05:
        deltas.append(ChatDelta(refusal="I may not say that."))
    if random.random() < 0.04:
        return [*deltas, AttemptFailed("down")]
    reason = random.choice([FinishReason.STOP] * 6 + [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
    reason = FinishReason.TOOL_CALLS if calls and reason is FinishReason.STOP else reason
    usage = TokenUsage(len(text), random.randint(1, 9)) if random.random() < 0.8 else None
    return [*deltas, ChatDelta(finish_reason=reason, usage=usage)]


def _pieces(random: Random, text: str) -> list[str]:
    cuts = sorted({0, len(text), *(random.randint(0, len(text)) for _ in range(random.randint(0, 3)))})
    return [text[start:end] for start, end in pairwise(cuts)]


def install(gateway: Gateway, folder: Path) -> Gateway:
    """Return a gateway with an agent of each kind, an index, and a model for summaries."""
    gateway = gateway.reconfigure(folder, "usd_to_eur: 0.5", "usd_to_eur: 0.25")
    for kind in sorted(MODEL_KINDS):
        tools = _TOOLS if KINDS.get(kind).accepts_tools else ""
        name = agent_of(kind)
        path = gateway.services.settings.agents / f"{name}.yaml"
        path.write_text(f"name: {name}\nmodel: small\nkind: {kind}\nsystem_prompt: Answer.\n{tools}")
    gateway.put_documents(a="alpha", b="beta")
    gateway.set_config(compact_summary_model=SUMMARY_MODEL)
    gateway.model.vectors = embed_unless_unlucky
    return gateway


def agent_of(kind: str) -> str:
    """Return the name of the agent of ``kind``."""
    return "of-" + kind.replace("_", "-")


def embed_unless_unlucky(request: EmbeddingRequest) -> EmbeddingReply:
    if any(UNLUCKY in text for text in request.texts):
        raise AttemptFailed("down")
    return count_letters(request)


def script(turn: RandomTurn) -> Callable[[ChatRequest, CallContext], Answer]:
    """Return the script of ``turn`` for one run."""
    remaining = list(turn.answers)

    def answer(request: ChatRequest, _: CallContext) -> Answer:
        if request.model == SUMMARY_MODEL:
            return AttemptFailed("down") if turn.fails_to_summarise else "What was said before."
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return answer


def new_session(gateway: Gateway, turn: RandomTurn) -> str:
    """Return a session for ``turn``, with the history that it needs."""
    sessions = f"/a1/agents/{agent_of(turn.kind)}/sessions"
    session = str(gateway.send("POST", sessions, body={"compact_keep_last_n": 2}).json["id"])
    gateway.model.script = "Final Answer: Hello there."
    for message in ("x" * turn.characters, "And now?") if turn.characters else ():
        assert gateway.send("POST", f"{sessions}/{session}/messages", body={"message": message}).status == 200
    return session


def history(gateway: Gateway, kind: str, session: str) -> list[Any]:
    """Return the messages of ``session`` and, if it was compacted, of its successor. Ids are numbered, times are left out."""
    at = f"/a1/agents/{agent_of(kind)}/sessions"
    view = gateway.send("GET", f"{at}/{session}").json
    sessions = [session, view["successor_session_id"]] if view["successor_session_id"] else [session]
    found: list[Any] = numbered([[_comparable(message) for message in messages(gateway, at, one)] for one in sessions])
    return found


def messages(gateway: Gateway, sessions: str, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.send("GET", f"{sessions}/{session}/messages").json["messages"]
    return found


def _comparable(message: Mapping[str, Any]) -> dict[str, Any]:
    without = {name: value for name, value in message.items() if name not in ("id", "created_at")}
    return {**without, "compacted_at": message["compacted_at"] is not None}


def numbered(value: Any) -> Any:
    """Return ``value`` with each id replaced by its number, in the order in which they occur."""
    numbers: dict[str, str] = {}

    def number(text: str) -> str:
        return _IDS.sub(lambda found: numbers.setdefault(found[0], f"id {len(numbers)}"), text)

    def walk(part: Any) -> Any:
        if isinstance(part, str):
            return number(part)
        if isinstance(part, Mapping):
            return {name: walk(inner) for name, inner in part.items()}
        if isinstance(part, Sequence):
            return [walk(inner) for inner in part]
        return part

    return walk(value)
