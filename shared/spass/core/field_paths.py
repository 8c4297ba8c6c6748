"""Paths to a field of a JSON value, as pydantic reports them."""

from collections.abc import Iterable, Iterator


def field_path(loc: Iterable[object]) -> str:
    """Return ``("documents", 3, "text")`` as ``documents.3.text``, with an empty name as ``""``, to show in a message."""
    return ".".join(str(part) or '""' for part in loc)


def path_within(value: object, loc: Iterable[int | str], *, missing: bool) -> Iterator[int | str]:
    """Yield the parts of ``loc`` that exist in ``value``. With ``missing``, also yield the last part, which does not exist.

    Skip all other parts: pydantic inserts the names of the members of a union.
    """
    parts = tuple(loc)
    for number, part in enumerate(parts, 1):
        members = dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, dict) else {}
        if part in members:
            value = members[part]
            yield part
        elif missing and number == len(parts):
            yield part
