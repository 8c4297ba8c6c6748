"""The price of a model call."""

from decimal import Decimal
from typing import Final

from spass.core.cost import Cost, CostSource
from spass.core.messages import TokenUsage
from spass.tenancy.config import ModelConfig

_TOKENS_PER_PRICE: Final = 1_000_000
_USD_PRECISION: Final = Decimal("1E-12")  # prices are rounded to it, so that sums of any length stay exact
_MAX_USD: Final = Decimal(1_000_000)  # a higher price from a provider is ignored


def price(model: ModelConfig, usage: TokenUsage, *, reported_usd: Decimal | None, usd_to_eur: Decimal) -> Cost:
    """Return the cost of one call: the price that the provider reported, or else the price in ``gateway.yaml``. An unknown price
    counts as 0."""
    per_in, per_out = model.usd_per_mtok_in, model.usd_per_mtok_out
    if reported_usd is not None and reported_usd <= _MAX_USD:
        usd, source = reported_usd, CostSource.UPSTREAM
    elif per_in is None or (per_out is None and usage.completion_tokens):
        return Cost(sub_calls=1)
    else:
        usd = (per_in * usage.prompt_tokens + (per_out or 0) * usage.completion_tokens) / _TOKENS_PER_PRICE
        source = CostSource.CATALOG
    return _rounded(usd, usd_to_eur, source)


def reported_price(usd: Decimal, usd_to_eur: Decimal) -> Cost:
    """Return the cost of one call whose price was reported as ``usd``."""
    return _rounded(usd, usd_to_eur, CostSource.UPSTREAM)


def _rounded(usd: Decimal, usd_to_eur: Decimal, source: CostSource) -> Cost:
    usd = usd.quantize(_USD_PRECISION)
    return Cost(usd.normalize(), (usd * usd_to_eur).normalize(), source, 1)
