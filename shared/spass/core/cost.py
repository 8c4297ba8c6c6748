"""Add up the cost and the tokens of a request over its model calls."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from spass.core.messages import NO_TOKENS, Json, TokenUsage


class CostSource(StrEnum):
    """The source of a price: the provider's answer, the prices in `gateway.yaml`, or none (the price is not known)."""

    UPSTREAM = "upstream"
    CATALOG = "catalog"
    NONE = "none"


_MOST_RELIABLE_FIRST: Final = (CostSource.UPSTREAM, CostSource.CATALOG, CostSource.NONE)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of ``sub_calls`` model calls in both currencies. ``source`` is the least reliable source of their costs."""

    usd: Decimal = Decimal(0)
    eur: Decimal = Decimal(0)
    source: CostSource = CostSource.NONE
    sub_calls: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        # A cost without calls has the source NONE, which must not replace the source of the other cost.
        if not self.sub_calls or not other.sub_calls:
            return other if other.sub_calls else self
        least_reliable = max(self.source, other.source, key=_MOST_RELIABLE_FIRST.index)
        return Cost(self.usd + other.usd, self.eur + other.eur, least_reliable, self.sub_calls + other.sub_calls)


NO_COST: Final = Cost()


class CostTally:
    """The cost and the tokens of one request so far. Every model call of the request, sub-calls included, adds to the same tally.

    What adds to a ``part`` also adds to the tally that it is part of. ``has_acted``: the request has called a chat model or a
    tool, so it must not begin anew. An embedding is not such an act: it costs little and changes nothing.
    """

    def __init__(self, whole: "CostTally | None" = None) -> None:
        self.total = NO_COST
        self.usage = NO_TOKENS
        self.has_acted = False
        self._whole = whole

    def add(self, cost: Cost, usage: TokenUsage = NO_TOKENS) -> None:
        self.total += cost
        self.usage += usage
        if self._whole is not None:
            self._whole.add(cost, usage)

    def note_act(self) -> None:
        self.has_acted = True
        if self._whole is not None:
            self._whole.note_act()

    def part(self) -> "CostTally":
        """Return the tally of a part of the request."""
        return CostTally(self)


def cost_json(cost: Cost) -> dict[str, Json]:
    """Return the cost as answers show it: amounts as exact decimal text."""
    return {
        "eur": decimal_text(cost.eur),
        "usd": decimal_text(cost.usd),
        "source": cost.source.value,
        "sub_calls": cost.sub_calls,
    }


def decimal_text(amount: Decimal) -> str:
    """Return an amount without an exponent, such as ``0.000125``."""
    return f"{amount:f}"
