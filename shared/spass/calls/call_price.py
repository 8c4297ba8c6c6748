"""The price of one call of a model, including its lost attempts."""

from dataclasses import replace
from decimal import Decimal

from spass.core.cost import NO_COST, Cost
from spass.core.messages import NO_TOKENS
from spass.metering import audit
from spass.metering.pricing import price
from spass.models.router import RoutingRecord
from spass.tenancy.config import ModelConfig


def price_call(
    model: ModelConfig, routing: RoutingRecord, status: str, *, reported_usd: Decimal | None, usd_to_eur: Decimal
) -> Cost:
    """Return the cost of one call, including its lost attempts.

    ``status`` is that of the audit. ``reported_usd`` is the price that the provider reported. Ignore a price of 0 if the provider
    did not count tokens either.
    """
    if status != audit.OK and routing.usage == NO_TOKENS:
        return NO_COST
    if routing.estimated and not reported_usd:
        reported_usd = None
    cost = price(model, routing.answered_usage, reported_usd=reported_usd, usd_to_eur=usd_to_eur)
    if routing.lost_usage == NO_TOKENS:
        return cost
    return replace(cost + price(model, routing.lost_usage, reported_usd=None, usd_to_eur=usd_to_eur), sub_calls=1)
