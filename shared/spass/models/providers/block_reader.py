"""Turn the content blocks of Anthropic's and Bedrock's answers into deltas."""

import json
from collections.abc import Mapping

from spass.core.messages import ToolCallDelta
from spass.models.providers.http import malformed_response
from spass.models.providers.payloads import SurrogateJoiner, join_surrogates
from spass.models.types import ChatDelta


class BlockReader:
    """The texts and tool calls of one answer. ``block`` is the number of a content block."""

    def __init__(self) -> None:
        self._texts = SurrogateJoiner()
        self._calls: dict[int, int] = {}  # block -> number of the tool call
        self._first_arguments: dict[int, str] = {}  # blocks of tool calls whose arguments have not begun -> initial arguments

    def text(self, piece: str) -> ChatDelta | None:
        return ChatDelta(self._texts.content(piece)) if piece else None

    def start_call(self, block: int, call_id: str, name: str, arguments: Mapping[str, object]) -> ChatDelta:
        """Begin a tool call. It has these ``arguments`` if ``add_arguments`` adds none."""
        if not (call_id and name):
            raise malformed_response("a tool call has no name")
        self._calls[block] = index = len(self._calls)
        self._first_arguments[block] = json.dumps(arguments, ensure_ascii=False)
        return ChatDelta(tool_calls=(ToolCallDelta(index, join_surrogates(call_id), join_surrogates(name)),))

    def add_arguments(self, block: int, piece: str) -> ChatDelta:
        """Add a piece of the arguments of the tool call in ``block``."""
        if block not in self._calls:
            raise malformed_response("arguments without a tool call")
        self._first_arguments.pop(block, None)
        index = self._calls[block]
        return ChatDelta(tool_calls=(ToolCallDelta(index, arguments=self._texts.arguments(index, piece)),))

    def end_block(self, block: int) -> ChatDelta | None:
        arguments = self._first_arguments.get(block)
        return None if arguments is None else self.add_arguments(block, arguments)

    def last_characters(self) -> ChatDelta:
        """Return the incomplete characters that remain at the end of the answer."""
        return self._texts.end() or ChatDelta()
