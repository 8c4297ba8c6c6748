"""What the earlier runs of an operator left: its state and its notes, as messages of its next run."""

from collections.abc import Iterator, Mapping

from spass.core.json import InvalidJson, read_object


def left_texts(text: str) -> Iterator[str]:
    """Yield the texts in a message about the state or the notes that earlier runs of an operator left."""
    heading, _, rest = text.partition("\n\n")
    if heading == "## Previous state":
        yield from _values(rest)
    elif heading == "## Notes of earlier runs":
        for line in rest.splitlines():
            yield from _values(line)


def _values(text: str) -> Iterator[str]:
    try:
        found: Mapping[str, object] = read_object(text)
    except InvalidJson:
        yield text
        return
    yield from (value for name in ("content", "input", "answer") if isinstance(value := found.get(name), str))
