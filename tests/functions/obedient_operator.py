"""A model of operators that obeys every text it reads, in its own calls and in the calls made aside."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from spass.agents.kinds.axes.compression import SUMMARY_PROMPT
from spass.agents.kinds.axes.extraction import EDGES_PROMPT, FACTS_PROMPT
from spass.agents.kinds.axes.retrieval import GRADES_PROMPT
from spass.calls.datamark import remove_marks
from spass.core.json import dump
from spass.core.messages import Json, Message, Role
from spass.models.types import CallContext, ChatRequest
from spass.testing.model import Answer, calls
from tests.functions.injection_corpus import orders_in, tokens_in

Made = tuple[str, Mapping[str, Any]]
"""The name of a tool, and the arguments of a call."""
_MAX_CALLS: Final = 32
_QUOTED: Final = 1500  # characters
_orders_in, _tokens_in = cache(orders_in), cache(tokens_in)  # most texts are read again in each step of a turn


@dataclass
class ObedientOperator:
    """A model that makes every call that a text orders, without a token and with each token in the texts.

    It uses the tokens in the answers to its own calls only if ``confirms`` is True. Its next turn begins with the calls in
    ``first``. ``made`` are the other calls. ``previews`` are those whose preview came with a token, and ``redeemed`` those with a
    token that did not fail: by the token, and without it.
    """

    confirms: bool = False
    first: Sequence[Made] = ()
    made: list[Made] = field(default_factory=list)
    previews: dict[str, Made] = field(default_factory=dict)
    redeemed: dict[str, Made] = field(default_factory=dict)
    requests: list[ChatRequest] = field(default_factory=list)

    def answer(self, request: ChatRequest, _: CallContext) -> Answer:
        self.requests.append(request)
        prompt, data = request.messages[0].content, remove_marks(request.messages[-1].content)
        if prompt.startswith(EDGES_PROMPT):
            edge: Json = {"cause": data[:300], "effect": "state", "confidence": 1, "evidence": data}
            return dump({"edges": [edge]})
        if prompt.startswith(FACTS_PROMPT):
            return dump({"entities": ["state"], "facts": [data]})
        if prompt.startswith(GRADES_PROMPT):
            return dump({"grades": [3] * len(data.splitlines()), "better_query": data})
        if prompt.startswith(SUMMARY_PROMPT) or not request.tools:
            return data[:_QUOTED]
        return self._step([message for message in request.messages if message.role is not Role.SYSTEM], request)

    def _step(self, messages: Sequence[Message], request: ChatRequest) -> Answer:
        turn = messages[max(at for at, message in enumerate(messages) if message.role is Role.USER) :]
        for call, result in _outcomes(turn):
            self._read(call, result)
        earlier = [call for call, _ in _outcomes(turn)]
        if first := self.first:
            self.first = ()
            return calls(*first)
        wanted = [*self._ordered(messages, {tool.name for tool in request.tools})]
        new = [call for at, call in enumerate(wanted) if call not in earlier and call not in wanted[:at]][:_MAX_CALLS]
        self.made += new
        return calls(*new) if new else f"Done. {remove_marks(messages[-1].content)[:_QUOTED]}"

    def _ordered(self, messages: Sequence[Message], offered: set[str]) -> Iterator[Made]:
        readings = dict.fromkeys(reading for message in messages for reading in _readings(remove_marks(message.content)))
        tokens = sorted(set[str]().union(*map(_tokens_in, readings)) - (set() if self.confirms else self.previews.keys()))
        for found in dict.fromkeys(order for reading in readings for order in _orders_in(reading)):
            if found.name in offered:
                for confirmation in ({}, *({"confirm_token": token} for token in tokens)):
                    yield found.name, {**found.values, **confirmation}

    def _read(self, call: Made, result: Any) -> None:
        if not isinstance(result, dict) or "error" in result:
            return
        if result.get("confirm_required") is True and "preview" in result:
            self.previews[result["confirm_token"]] = call
        if token := call[1].get("confirm_token"):
            self.redeemed[token] = call[0], {name: value for name, value in call[1].items() if name != "confirm_token"}


def _readings(text: str) -> Iterator[str]:
    """Yield ``text``, and the texts in the JSON that it is or that is in its lines."""
    yield text
    value = _parsed(text)
    values = [value] if isinstance(value, dict | list) else [_parsed(line) for line in text.splitlines() if line[:1] in "{["]
    while values:
        match values.pop():
            case str() as inner:
                yield from _readings(inner)
            case dict() as members:
                values += members.values()
            case list() as items:
                values += items


def _outcomes(messages: Sequence[Message]) -> Iterator[tuple[Made, Any]]:
    """Yield the calls in ``messages`` with their results. A result that is not JSON is None."""
    pending: dict[str, Made] = {}
    for message in messages:
        pending |= {call.id: (call.name, json.loads(call.arguments)) for call in message.tool_calls}
        if message.role is Role.TOOL and message.tool_call_id in pending:
            yield pending[message.tool_call_id], _parsed(remove_marks(message.content))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
