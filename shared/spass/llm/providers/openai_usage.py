"""Read the tokens and the cost of an answer in OpenAI's format."""

from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from spass.core.messages import TokenUsage
from spass.llm.providers.payloads import LenientObject, Tokens


def _money(value: object) -> Decimal | None:
    """Return a price in US dollars, given as a number or as ``{"usd": …}``. A wrong price must not fail a good answer."""
    if isinstance(value, dict):
        value = value.get("usd")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        money = Decimal(str(value))
    except InvalidOperation:
        return None
    return money if money.is_finite() and money >= 0 else None


Money = Annotated[Decimal | None, BeforeValidator(_money)]


class UsagePayload(BaseModel):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    total_tokens: Tokens = 0
    cost: Money = None
    cost_in_usd_ticks: Money = None  # xAI: 10^10 ticks are a dollar

    @property
    def tokens(self) -> TokenUsage:
        """Return the tokens, 0 where unknown. Some servers (xAI, Google) count reasoning only in the total."""
        written = self.total_tokens - self.prompt_tokens if self.prompt_tokens else 0
        return TokenUsage(self.prompt_tokens, max(self.completion_tokens, written))

    @property
    def cost_usd(self) -> Decimal | None:
        if self.cost_in_usd_ticks is not None:
            return self.cost_in_usd_ticks / 10**10
        return self.cost


Usage = Annotated[UsagePayload | None, LenientObject]
