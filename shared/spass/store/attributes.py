"""The values of an item's attributes."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias

Value: TypeAlias = "None | bool | int | Decimal | str | bytes | frozenset[str] | Sequence[Value] | Mapping[str, Value]"
"""The value of an attribute. Store a fraction as a Decimal only if an ``Update`` adds to it, otherwise as text. A whole Decimal
is read back as an int. DynamoDB does not store empty sets."""
Item: TypeAlias = dict[str, Value]
"""A stored item, ``pk`` and ``sk`` included."""
