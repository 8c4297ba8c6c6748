"""The results of tool calls, with bounds on their size. A failed call has the result ``{"error": {"code", "message"}}``."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from spass.core.effects import CellResult, ToolOutcome
from spass.core.errors import InternalError, SpassError
from spass.core.json import dump, encode_utf8
from spass.core.messages import Json, Message, Role, ToolCall
from spass.metering import audit
from spass.store.idempotency import StoredResponse
from spass.tools.base import CallResult, InvalidArguments, ToolError, arguments_for_display
from spass.tools.responses import ToolResult

MAX_RESULT_BYTES: Final = 64 * 1024
"""Bytes of JSON."""
MAX_RICH_BYTES: Final = 128 * 1024
"""Bytes of JSON of all blocks for people of one call."""
_MAX_LIST_BYTES: Final = 48 * 1024
_MAX_APPROVALS_BYTES: Final = 32 * 1024
_MAX_ERROR_BYTES: Final = 8 * 1024
_ROOM_FOR_THE_REST: Final = 1024  # bytes of the other fields
_NO_PREVIEW: Final[Json] = {"note": "The preview is too long to be shown here."}


def json_size(value: Json) -> int:
    """Return the bytes of ``value`` as compact JSON."""
    return len(encode_utf8(dump(value)))


def fit_items(items: Sequence[Json]) -> list[Json]:
    """Return the first items, up to 48 KiB of JSON and at least one, so that every page of a list makes progress."""
    size = 0
    for number, item in enumerate(items):
        size += len(json.dumps(item, ensure_ascii=False).encode())
        if number and size > _MAX_LIST_BYTES:
            return [*items[:number]]
    return [*items]


def truncate_rich(blocks: Sequence[Json], max_bytes: int = MAX_RICH_BYTES) -> tuple[Json, ...]:
    """Return blocks for people, at most ``max_bytes`` of JSON in all. The room is shared, smallest block first, so a long block
    does not displace a short one. The contents of a block that does not fit are cut, and its ``truncated`` is true. The last
    blocks are left out if they do not fit even without contents.
    """
    if json_size([*blocks]) <= max_bytes:
        return tuple(blocks)
    fitting = [_without_contents(block) for block in blocks]
    sizes = [json_size(block) + 1 for block in fitting]
    while sum(sizes) > max_bytes - 1:
        sizes.pop()
    room = max_bytes - 1 - sum(sizes)
    whole_sizes = [json_size(block) + 1 for block, _ in zip(blocks, sizes, strict=False)]
    for place in sorted(range(len(sizes)), key=whole_sizes.__getitem__):
        block, cut, size = blocks[place], fitting[place], sizes[place]
        fitted = block if whole_sizes[place] - size <= room else _with_contents(block, cut, room)
        room -= json_size(fitted) + 1 - size
        fitting[place] = fitted
    return tuple(fitting[: len(sizes)])


def _contents(block: Mapping[str, Json]) -> str | None:
    return next((name for name in ("unified", "text", "entries") if name in block), None)


def _without_contents(block: Json) -> Json:
    if not isinstance(block, Mapping) or (name := _contents(block)) is None:
        return block
    return {**block, name: "" if isinstance(block[name], str) else [], "truncated": True}


def _with_contents(block: Json, cut: Json, room: int) -> Json:
    """Return ``cut`` with as much of the contents of ``block`` as adds at most ``room`` bytes of JSON: whole lines, or whole
    entries."""
    if not isinstance(block, Mapping) or not isinstance(cut, Mapping) or (name := _contents(block)) is None:
        return cut
    whole = block[name]
    if isinstance(whole, str):
        text = fit_text(whole, room + 2)
        return {**cut, name: text[: text.rfind("\n") + 1] or text}
    entries: list[Json] = []
    for entry in whole if isinstance(whole, Sequence) else ():
        room -= json_size(entry) + 1
        if room < 0:
            break
        entries.append(entry)
    return {**cut, name: entries}


def fit_approvals(approvals: Sequence[Json]) -> list[Json]:
    """Return ``approvals``. If all together are too long, drop previews, the largest first, and then the last approvals."""
    fitted, sizes = [*approvals], [json_size(approval) + 1 for approval in approvals]
    total = sum(sizes)
    for place in sorted(range(len(fitted)), key=sizes.__getitem__, reverse=True):
        approval = fitted[place]
        if total <= _MAX_APPROVALS_BYTES:
            break
        if isinstance(approval, Mapping):
            fitted[place] = {**approval, "preview": _NO_PREVIEW}
            total -= sizes[place]
            sizes[place] = json_size(fitted[place]) + 1
            total += sizes[place]
    while total > _MAX_APPROVALS_BYTES:
        fitted.pop()
        total -= sizes.pop()
    return fitted


def fit_text(text: str, room: int) -> str:
    """Return ``text``, or as much of its beginning as takes at most ``room`` bytes of JSON."""
    if json_size(text) <= room:
        return text
    text = encode_utf8(text)[: max(room, 0)].decode("utf-8", "ignore")
    while text and (size := json_size(text)) > room:
        text = text[: len(text) * room // (size + 1)]
    return text


def fit_cell(cell: CellResult, approvals: Sequence[Json] = ()) -> dict[str, Json]:
    """Return the result of a cell as at most 64 KiB of JSON: of an output that is longer, the beginning is kept and the rest is
    counted. It names the ``approvals`` that calls within the cell wait for, if there are any."""
    error = None if cell.error is None else fit_text(cell.error, _MAX_ERROR_BYTES)
    output = fit_text(cell.output, MAX_RESULT_BYTES - _MAX_ERROR_BYTES - _ROOM_FOR_THE_REST - json_size([*approvals]))
    return {
        "output": output,
        "error": error,
        "truncated": cell.truncated + len(cell.output) - len(output),
        **({"approvals": [*approvals]} if approvals else {}),
    }


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to a tool call over HTTP.

    ``is_stored``: the transaction of the tool's change has already stored the answer under the request's idempotency key.
    ``answer_to_store``: the answer that the key stores instead of ``body``.
    """

    body: ToolResult
    failed: bool
    is_stored: bool = False
    answer_to_store: StoredResponse | None = None


def truncate_result(result: Json) -> tuple[Json, str]:
    """Return ``result`` and its compact JSON. Replace a result that is too long by its beginning and a note."""
    text = dump(result)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate in the answer of another server
        encoded = encode_utf8(text)
        text = encoded.decode()
        result = json.loads(text)
    if len(encoded) <= MAX_RESULT_BYTES:
        return result, text
    # The beginning becomes a JSON string, and quoting makes a JSON text at most twice as long.
    beginning = encoded[: MAX_RESULT_BYTES // 2 - 100].decode("utf-8", "ignore")
    replacement: Json = {"truncated": True, "note": "The result was too long. This is its beginning.", "beginning": beginning}
    return replacement, dump(replacement)


_CANCELLED: Final = ToolError(
    "The call was cancelled because the work that it belongs to has ended. A change that it had begun may have been made.",
    code=audit.CANCELLED,
)
_BROKEN: Final = ToolError("The tool failed because of an error in the gateway.", code=InternalError.code)


def error_result(error: ToolError | SpassError) -> CallResult:
    """Return ``error`` as a result that the model reads."""
    body: dict[str, Json] = {"code": error.code, "message": error.message}
    if isinstance(error, InvalidArguments) and error.errors:
        body["errors"] = [*error.errors]
    if isinstance(error, ToolError):
        return CallResult({"error": body}, waiting=error.waiting, versions=error.versions, code=error.code)
    return CallResult({"error": body}, code=error.code)


def outcome_of(call: ToolCall, result: CallResult, duration_ms: int = 0) -> ToolOutcome:
    """Return the outcome of ``call`` with its message for the model."""
    bounded, text = truncate_result(result.result) if result.text is None else (result.result, result.text)
    message = Message(Role.TOOL, text, tool_call_id=call.id)
    arguments = arguments_for_display(call.arguments)
    return ToolOutcome(
        call,
        arguments,
        bounded,
        message,
        duration_ms,
        not result.failed,
        truncate_rich(result.rich),
        result.approval,
        result.waiting,
        result.versions,
    )


def outcome_of_failure(call: ToolCall, error: BaseException, duration_ms: int) -> ToolOutcome:
    """Return the outcome of a call that raised ``error``. The message of an unexpected exception stays in the gateway."""
    if isinstance(error, asyncio.CancelledError):
        readable: ToolError | SpassError = _CANCELLED
    else:
        readable = error if isinstance(error, (ToolError, SpassError)) else _BROKEN
    return outcome_of(call, error_result(readable), duration_ms)


def waiting_results(outcome: ToolOutcome) -> list[Json]:
    """Return the results that wait for a person: of the call itself, or of the calls within it. A failed call has none
    of them."""
    if outcome.approval is not None:
        return [outcome.result]
    return cast("dict[str, list[Json]]", outcome.result).get("approvals", []) if outcome.waiting else []
