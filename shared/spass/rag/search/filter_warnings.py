"""Warn of a filter that cannot mean what it says, from the columns that the query has loaded to apply it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from spass.rag.index.answers import QueryWarning
from spass.rag.index.filters import Filter, FilterCondition, ValueType

_MAX_SHOWN_CHARACTERS: Final = 64  # of a field's name


class FieldTypes:
    """The types of the values that the documents of an index have in the fields of one filter. Null is not a value.

    Of several types a segment reports the least and the greatest, which tell whether all are one.
    """

    def __init__(self) -> None:
        self._types: defaultdict[str, set[ValueType]] = defaultdict(set)

    def add(self, name: str, types: set[ValueType]) -> None:
        """Add the ``types`` that the live documents of a segment have in the field ``name``."""
        self._types[name] |= types

    def warnings(self, filter_: Filter) -> Iterator[QueryWarning]:
        """Yield a warning for each field of ``filter_`` that no document has, or whose values are all text while the filter
        compares it with numbers."""
        for name, condition in filter_.fields.items():
            shown = name[:_MAX_SHOWN_CHARACTERS]
            if not self._types[name]:
                message = f"No document of this index has the field '{shown}'."
                yield QueryWarning(code="field_unknown", field=name, message=message)
            elif self._types[name] == {ValueType.STRING} and _compares_numbers(condition):
                message = (
                    f"The filter compares '{shown}' with a number, but all its values in this index are strings, which no number "
                    "equals. Send a string, or store numbers: the columns of a CSV file are strings."
                )
                yield QueryWarning(code="type_mismatch", field=name, message=message)


def _compares_numbers(condition: FilterCondition) -> bool:
    """Return whether a part of ``condition`` has numbers only. One of ``$in`` may be meant for documents of another index."""
    parts = [{key.type for key in condition.one_of or ()}]
    parts += [{key.type} for key in (condition.not_equal, condition.minimum, condition.maximum) if key is not None]
    return {ValueType.NUMBER} in parts
