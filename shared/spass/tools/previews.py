"""Previews of calls that wait for a person: all of the call for people, and as much as fits in a result for the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.tools.results import MAX_RESULT_BYTES, MAX_RICH_BYTES, json_size, truncate_rich
from spass.tools.workspace_diffs import edit_result, rich_diffs
from spass.workspaces.diff import FileDiff

MAX_PREVIEW_BYTES: Final = MAX_RESULT_BYTES - 2048
"""Bytes of JSON of a preview that a model reads. The rest of the result is for its other fields."""
_INLINE_BYTES: Final = 256 * 1024
"""Bytes of JSON of the preview and the blocks that people see."""
_INLINE_ARGUMENTS_BYTES: Final = 64 * 1024
_MIN_INLINE_BYTES: Final = 96 * 1024
_MIN_RICH_BYTES: Final = 16 * 1024
_OTHER_FIELDS_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Preview:
    """A preview for people with its ``rich`` blocks, and the one that the model reads."""

    shown: Mapping[str, Json]
    for_model: Mapping[str, Json]
    rich: tuple[Json, ...] = ()


def preview_call(preview: Mapping[str, Json]) -> Preview:
    """Return the preview of a tool in two steps. The tool bounds its size."""
    is_long = len(dump_bytes(preview)) > MAX_PREVIEW_BYTES
    return Preview(preview, {"note": "The preview is too long to be shown here."} if is_long else preview)


def preview_change(workspace: str, diffs: Sequence[FileDiff], answer: str, arguments: Mapping[str, Json], why: str) -> Preview:
    """Return the preview of a change of ``workspace``, whose whole ``diffs`` are stored with the call. ``why`` says in a sentence
    why the change waits. ``complete`` says whether the blocks show all of the diffs; if not, ``omitted_bytes`` counts what is
    missing. Preview, blocks and ``arguments`` together fit in one event of a stream.
    """
    room = max(_MIN_INLINE_BYTES, _INLINE_BYTES - max(0, json_size(arguments) - _INLINE_ARGUMENTS_BYTES))
    shown = _preview(workspace, why, diffs, answer, room - _MIN_RICH_BYTES)
    blocks = rich_diffs(diffs)
    rich = truncate_rich(blocks, min(MAX_RICH_BYTES, room - json_size(shown) - _OTHER_FIELDS_BYTES))
    sizes: dict[str, Json] = {"file_count": len(diffs), "complete": rich == blocks}
    if rich != blocks:
        inline = sum(len(str(block["unified"]).encode()) for block in rich if isinstance(block, Mapping))
        sizes["omitted_bytes"] = sum(len(diff.unified.encode()) for diff in diffs) - inline
    for_model = _preview(workspace, why, diffs, answer, MAX_PREVIEW_BYTES - _OTHER_FIELDS_BYTES)
    return Preview({**shown, **sizes}, {**for_model, **sizes}, rich)


def _preview(workspace: str, why: str, diffs: Sequence[FileDiff], answer: str, max_bytes: int) -> dict[str, Json]:
    result = edit_result(None, diffs, answer, max_bytes=max_bytes - _OTHER_FIELDS_BYTES - json_size(why))
    return {"workspace": workspace, "why": why, **{name: value for name, value in result.items() if name != "version"}}
