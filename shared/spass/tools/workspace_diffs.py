"""Diffs of files of a workspace, for the model and for people."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import anyio.to_thread

from spass.core.errors import WorkspaceLimit
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.core.paging import PageSizeLimit
from spass.tools.agent_workspace import NOT_TEXT, AgentWorkspace
from spass.tools.base import ToolError
from spass.tools.results import MAX_RESULT_BYTES, MAX_RICH_BYTES
from spass.workspaces.change import Body, ChangedFile
from spass.workspaces.diff import DiffLimit, FileDiff
from spass.workspaces.paths import MAX_FILE_BYTES, WorkspacePath, show
from spass.workspaces.text import decode_text
from spass.workspaces.tree import Tree, TreeAt, TreeFile

MAX_UNIFIED_BYTES: Final = 32 * 1024
"""Bytes of all unified diffs of a result together."""
MAX_SHOWN_PATHS: Final = 2_000
"""Files of a change that a person is asked to approve."""
MAX_SHOWN_BYTES: Final = 4 * 2**20
"""Bytes of all unified diffs of a change that a person is asked to approve."""
_ABSENT: Final = "0" * 64
_MAX_ANSWER_BYTES: Final = 16 * 1024
_MIN_ANSWER_BYTES: Final = 1024
_MAX_READ_BYTES: Final = 32 * 2**20
"""Bytes of the bodies that one call compares. Further files have no unified diff and no counts of lines."""


async def compare_files(workspace: AgentWorkspace, generation: str, files: Sequence[ChangedFile]) -> tuple[FileDiff, ...]:
    """Return the diffs of ``files``, whose stored bodies belong to ``generation``."""
    compared = [*_take_readable(files)]
    limit = DiffLimit(MAX_RICH_BYTES)
    diffs = await _compare(workspace, generation, compared, lambda file, *sides: limit.diff(file.path, *sides))
    rest = files[len(compared) :]
    return (*diffs, *(FileDiff(file.path, file.status, 0, 0, "", truncated=True) for file in rest))


def _take_readable(files: Sequence[ChangedFile]) -> Iterator[ChangedFile]:
    """Yield the first files, as long as their bodies together are short enough to be compared."""
    size = 0
    for file in files:
        size += sum(side.size for side in (file.before, file.after) if side is not None)
        if size > _MAX_READ_BYTES:
            return
        yield file


async def _compare(
    workspace: AgentWorkspace,
    generation: str,
    files: Sequence[ChangedFile],
    diff: Callable[[ChangedFile, bytes | None, bytes | None], FileDiff],
) -> tuple[FileDiff, ...]:
    """Return the ``diff`` of each file and its two bodies, computed in a thread."""
    before = await _read(workspace, generation, {file.path: file.before for file in files})
    after = await _read(workspace, generation, {file.path: file.after for file in files})
    return await anyio.to_thread.run_sync(
        lambda: tuple(diff(file, before.get(file.path), after.get(file.path)) for file in files)
    )


async def _read(
    workspace: AgentWorkspace, generation: str, files: Mapping[WorkspacePath, Body | TreeFile | None]
) -> Mapping[WorkspacePath, bytes]:
    stored = {path: file for path, file in files.items() if isinstance(file, TreeFile)}
    new = {path: file.content for path, file in files.items() if isinstance(file, Body)}
    at = TreeAt(0, generation, Tree(stored))
    return {**new, **await workspace.stored.read_many(at, stored)}


async def compare_whole(workspace: AgentWorkspace, generation: str, files: Sequence[ChangedFile]) -> tuple[FileDiff, ...]:
    """Return the whole diffs of ``files``, for a person who decides about them. A stored file that is not text is named by the
    SHA-256 of its content, in the words of git.

    Raises:
        WorkspaceLimit: they cannot all be shown.
        ToolError: new content is not text, so nobody could read it.
    """
    if len(files) > MAX_SHOWN_PATHS:
        raise _too_much(f"It touches {len(files)} files; a call that needs an approval may touch {MAX_SHOWN_PATHS}.")
    if len([*_take_readable(files)]) < len(files):
        raise _too_much(f"Its files have more than {_MAX_READ_BYTES // 2**20} MiB.")
    limit = DiffLimit(MAX_SHOWN_BYTES, file_bytes=MAX_SHOWN_BYTES, text_bytes=MAX_FILE_BYTES)
    return await _compare(workspace, generation, files, partial(_show, limit))


def _show(limit: DiffLimit, file: ChangedFile, before: bytes | None, after: bytes | None) -> FileDiff:
    """Return the whole diff of one file."""
    if isinstance(file.after, Body) and decode_text(file.after.content) is None:
        raise ToolError(
            f"{show(file.path)} would not be text, so a person could not read it before approving it. Nothing was changed. Write "
            "text.",
            code=NOT_TEXT,
        )
    if decode_text(before or b"") is None or decode_text(after or b"") is None:
        sides = [side.sha256 if side is not None else _ABSENT for side in (file.before, file.after)]
        names = [f"{name}/{file.path}" if side else "/dev/null" for name, side in (("a", file.before), ("b", file.after))]
        unified = f"index {sides[0]}..{sides[1]}\nBinary files {names[0]} and {names[1]} differ\n"
        return FileDiff(file.path, file.status, 0, 0, unified, truncated=False)
    diff = limit.diff(file.path, before, after)
    if diff.truncated or not PageSizeLimit.fits_alone(dump_bytes(diff.to_json())):
        raise _too_much(f"The diff of {show(file.path)}, with those before it, has more than {MAX_SHOWN_BYTES // 2**20} MiB.")
    return diff


def _too_much(reason: str) -> WorkspaceLimit:
    return WorkspaceLimit(
        f"This change needs a person's approval, and it is too large to be shown whole. {reason} Nothing was changed. Split it "
        "into several calls, each with fewer files or smaller changes."
    )


def rich_diffs(diffs: Sequence[FileDiff]) -> tuple[Json, ...]:
    """Return the blocks with ``diffs`` for people."""
    return tuple({"kind": "diff", **diff.to_json()} for diff in diffs)


def edit_result(
    version: int | None, diffs: Sequence[FileDiff], answer: str, *, max_bytes: int = MAX_RESULT_BYTES
) -> dict[str, Json]:
    """Return the result of an edit for the model: at most ``max_bytes`` of JSON, with at most 32 KiB of unified diffs. If it is
    longer, the diffs are cut first, then the answer, and at last the list of files; ``omitted`` counts the files left out."""
    count, unified_bytes, answer_bytes = len(diffs), MAX_UNIFIED_BYTES, _MAX_ANSWER_BYTES
    while True:
        files = _cut(diffs[:count], unified_bytes)
        result: dict[str, Json] = {"version": version, "files": files, "answer": _cut_answer(answer, answer_bytes)}
        if count < len(diffs):
            result["omitted"] = len(diffs) - count
        if len(dump_bytes(result)) <= max_bytes:
            return result
        if unified_bytes:
            unified_bytes //= 2
        elif answer_bytes > _MIN_ANSWER_BYTES:
            answer_bytes //= 2
        else:
            count = count * 9 // 10


def _cut_answer(answer: str, size: int) -> str:
    whole = answer.encode("utf-8", "replace")
    if len(whole) <= size:
        return whole.decode()
    return whole[:size].decode("utf-8", "ignore") + "\n[The rest was cut.]"


def _cut(diffs: Sequence[FileDiff], unified_bytes: int) -> list[Json]:
    """Return ``diffs`` as JSON, with the first whole lines of their unified diffs that fit. The smallest diffs come first, so a
    long one does not displace a short one."""
    fitting = [diff.to_json() for diff in diffs]
    texts = [diff.unified.encode() for diff in diffs]
    for place in sorted(range(len(diffs)), key=lambda place: len(texts[place])):
        unified = texts[place]
        if len(unified) > unified_bytes:
            unified = unified[: unified.rfind(b"\n", 0, unified_bytes) + 1]
            fitting[place] |= {"unified": unified.decode(), "truncated": True}
        unified_bytes -= len(unified)
    return [*fitting]
