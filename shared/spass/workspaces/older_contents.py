"""Find a file whose new content is one that it had before, also if other blanks and invisible characters are in it.

A change of nothing else brings no content back: then the newest content looks like the new one, too.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import anyio.to_thread

from spass.workspaces.change import Body
from spass.workspaces.objects import WorkspaceObjects, decode_body
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.text import visible_sha256
from spass.workspaces.tree import TreeAt, TreeFile
from spass.workspaces.versions import Version, content_key, list_versions

MAX_LOOKED_BACK: Final = 200
"""Versions in which a content is looked for."""
_TREES_AT_ONCE: Final = 8
_MAX_COMPARED_BYTES: Final = 16 * 2**20
"""Bytes of old files, the newest first, whose visible characters are compared."""


class _OldFile(NamedTuple):
    path: WorkspacePath
    file: TreeFile


async def find_older(objects: WorkspaceObjects, at: TreeAt, bodies: Mapping[WorkspacePath, Body]) -> WorkspacePath | None:
    """Return the first path of ``bodies`` that had the same content in one of the newest versions before ``at``, or None."""
    if at.version <= 1 or not bodies:
        return None
    versions = await list_versions(
        objects.store, objects.workspace, at.generation, after=at.version, limit=MAX_LOOKED_BACK, newest_first=True
    )
    old_files = await _old_files(objects, versions, bodies)
    keys = {key for version in versions for key in version.content_keys}
    keys |= {content_key(path, file.sha256) for path, file in old_files}
    for path, body in bodies.items():
        if content_key(path, body.sha256) in keys:
            return path
    others = [old for old in old_files if old.file.sha256 != at.tree.sha256(old.path)]
    keys |= {content_key(path, sha256) async for path, sha256 in _visible_hashes(objects, _newest(others))}
    looks = {path: await _visible_sha256(body.content) for path, body in bodies.items()}
    similar = [path for path, sha256 in looks.items() if content_key(path, sha256) in keys]
    current = [_OldFile(path, at.tree.files[path]) for path in similar if path in at.tree.files]
    unchanged = {path async for path, sha256 in _visible_hashes(objects, current) if sha256 == looks[path]}
    return next((path for path in similar if path not in unchanged), None)


async def _old_files(
    objects: WorkspaceObjects, versions: Sequence[Version], paths: Iterable[WorkspacePath]
) -> Sequence[_OldFile]:
    """Return the files at ``paths`` in the trees of those versions that do not say what they brought, and of the oldest one,
    which also has what older ones brought. Each file is there once, the newest first."""
    names = [one.tree for one in versions if one.contents is None or (one is versions[-1] and one.version > 1)]
    found: dict[_OldFile, None] = {}
    for start in range(0, len(names), _TREES_AT_ONCE):
        for tree in await asyncio.gather(*map(objects.tree, names[start : start + _TREES_AT_ONCE])):
            found |= {_OldFile(path, file): None for path in paths if (file := tree.files.get(path))}
    return [*found]


def _newest(old_files: Iterable[_OldFile]) -> Sequence[_OldFile]:
    """Return the first of ``old_files``, as many as have ``_MAX_COMPARED_BYTES`` together."""
    newest, room = list[_OldFile](), _MAX_COMPARED_BYTES
    for old in old_files:
        room -= old.file.size
        if room < 0:
            break
        newest.append(old)
    return newest


async def _visible_hashes(objects: WorkspaceObjects, files: Sequence[_OldFile]) -> AsyncIterator[tuple[WorkspacePath, str]]:
    """Yield the path and the SHA-256 of the visible characters of each of ``files``."""
    paths: dict[str, list[WorkspacePath]] = {}
    for path, file in files:
        paths.setdefault(file.sha256, []).append(path)
    async with aclosing(objects.stored_bodies(file for _, file in files)) as stored:
        async for file, content in stored:
            sha256 = await _visible_sha256(decode_body(file, content))
            for path in paths[file.sha256]:
                yield path, sha256


async def _visible_sha256(content: bytes) -> str:
    return await anyio.to_thread.run_sync(visible_sha256, content)
