"""The price of a model call."""

from decimal import Decimal
from typing import Final

from spass.core.cost import Cost, CostSource
from spass.core.messages import TokenUsage
from spass.tenancy.config import ModelConfig

_PER_PRICE: Final = Decimal(1_000_000)
_SMALLEST: Final = Decimal("1E-12")
"""US dollars. Prices are rounded to it, so that sums of any length stay exact."""
_LARGEST: Final = Decimal(1_000_000)
"""US dollars. A higher price from a provider is ignored."""


def price(model: ModelConfig, usage: TokenUsage, *, said_usd: Decimal | None, usd_to_eur: Decimal) -> Cost:
    """Return the cost of one call: the provider's (``said_usd``), else the catalogue's (US dollars per million tokens), else
    unknown, which counts as 0."""
    if said_usd is not None and said_usd <= _LARGEST:
        return _cost(said_usd, usd_to_eur, CostSource.UPSTREAM)
    per_in, per_out = model.usd_per_mtok_in, model.usd_per_mtok_out
    if per_in is None or (per_out is None and usage.completion_tokens):
        return Cost(sub_calls=1)
    usd = (per_in * usage.prompt_tokens + (per_out or 0) * usage.completion_tokens) / _PER_PRICE
    return _cost(usd, usd_to_eur, CostSource.CATALOG)


def _cost(usd: Decimal, usd_to_eur: Decimal, source: CostSource) -> Cost:
    usd = usd.quantize(_SMALLEST)
    return Cost(usd.normalize(), (usd * usd_to_eur).normalize(), source, 1)


def decimal_text(amount: Decimal) -> str:
    """Return an amount without an exponent, as the API writes it: ``0.000125``."""
    return f"{amount:f}"
