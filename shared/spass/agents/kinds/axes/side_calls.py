"""Side calls of an operator, which are model calls that are not its steps: to shorten a result, to find causes, to grade notes.

A failed one never fails the run.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

from spass.agents.kinds.written_arguments import arguments_text
from spass.core.effects import AssistantReply, Effect, Infer, ReportStatus, user
from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json, Message, Role

T = TypeVar("T")

Effects: TypeAlias = Generator[Effect, Any, T]
"""A part of a run that returns a value."""
Purpose: TypeAlias = Literal["observation_compression", "memory_extraction", "retrieval_strategy"]
"""The axis for which a call is made."""

MAX_SIDE_CALLS: Final = 200
"""Side calls of one run."""
MAX_TASK_CHARACTERS: Final = 4000
"""Characters of the task that a side call is told."""
_MAX_MESSAGE_CHARACTERS: Final = 300
_TIMEOUT: Final = "upstream_timeout"
_BRACKET: Final = re.compile(r"[\[{]")


@dataclass(slots=True)
class SideCalls:
    """The side calls of one run, whose input is ``task``. ``failures`` is ``metadata.side_calls`` of the answer."""

    task: str
    failures: list[Json] = field(default_factory=list)
    _made: int = field(default=0, init=False)
    _is_over: bool = field(default=False, init=False)

    def ask(self, purpose: Purpose, instruction: str, data: str, max_tokens: int) -> "Effects[str | None]":
        """Tell a model the ``instruction``, the task and the ``data``. Return its reply, or None if there is none.

        After a call that ran out of time, or after ``MAX_SIDE_CALLS``, no further call is made: the run needs its time.
        """
        if self._is_over:
            return None
        if self._made == MAX_SIDE_CALLS:
            self._is_over = True
            yield from self.fail(purpose, "too_many_calls", f"The run made {MAX_SIDE_CALLS} calls aside. It makes no more.")
            return None
        self._made += 1
        task = user(f"The task:\n\n{self.task[:MAX_TASK_CHARACTERS]}")
        messages = (Message(Role.SYSTEM, instruction), task, user(data, data=True))
        reply: AssistantReply = yield Infer(messages, "none", temperature=0, max_tokens=max_tokens, aside=True)
        if reply.error is not None:
            self._is_over = reply.error.code == _TIMEOUT
            yield from self.fail(purpose, reply.error.code, reply.error.message)
            return None
        if not reply.content.strip():
            yield from self.fail(purpose, "empty_reply", "The reply of the model is empty.")
        return reply.content.strip() or None

    def fail(self, purpose: Purpose, code: str, message: str) -> "Effects[None]":
        """List a failed call, and tell the client."""
        self.failures.append({"purpose": purpose, "code": code, "message": message[:_MAX_MESSAGE_CHARACTERS]})
        yield ReportStatus(f"A call for {purpose} failed ({code}). The run continues without it.")


def read_reply(text: str) -> Mapping[str, Json] | None:
    """Return the JSON object in a reply, or None if there is none. It may be in a fence or follow words. A list is the member
    ``items``."""
    bracket = _BRACKET.search(text)
    body = text[bracket.start() :] if bracket is not None else ""
    if body.startswith("["):
        body = f'{{"items":{body[: body.rfind("]") + 1]}}}'
    try:
        return read_object(arguments_text(body, None)) if body else None
    except InvalidJson:
        return None


def clip_bytes(text: str, limit: int) -> str:
    """Return as much of the beginning of ``text`` as takes at most ``limit`` bytes of UTF-8."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
