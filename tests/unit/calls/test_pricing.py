"""Test the cost of a call."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.recorder import price
from spass.core.cost import CostSource, decimal_text
from spass.core.messages import TokenUsage
from spass.tenancy.config import ModelConfig

RATE = Decimal("0.92")
PRICED = ModelConfig(name="m", context_window=1, usd_per_mtok_in=Decimal(5), usd_per_mtok_out=Decimal(25))
TOKENS = st.integers(0, 10**7)


def test_the_price_in_the_catalogue_is_per_million_tokens() -> None:
    cost = price(PRICED, TokenUsage(1_000_000, 100_000), reported_usd=None, usd_to_eur=RATE)
    assert (cost.usd, cost.eur, cost.source, cost.sub_calls) == (Decimal("7.5"), Decimal("6.9"), CostSource.CATALOG, 1)


def test_the_price_of_the_provider_wins_even_if_it_is_0() -> None:
    cost = price(PRICED, TokenUsage(1, 1), reported_usd=Decimal(0), usd_to_eur=RATE)
    assert (cost.usd, cost.source) == (Decimal(0), CostSource.UPSTREAM)


@pytest.mark.parametrize("known", [{}, {"usd_per_mtok_in": Decimal(1)}, {"usd_per_mtok_out": Decimal(1)}])
def test_a_price_for_only_one_direction_is_unknown(known: dict[str, Decimal]) -> None:
    model = ModelConfig.model_validate({"name": "m", "context_window": 1, **known})
    cost = price(model, TokenUsage(10, 10), reported_usd=None, usd_to_eur=RATE)
    assert (cost.usd, cost.source, cost.sub_calls) == (Decimal(0), CostSource.NONE, 1)


def test_an_embedding_model_needs_no_output_price() -> None:
    model = ModelConfig(name="e", kind="embedding", context_window=1, dimensions=3, usd_per_mtok_in=Decimal("0.02"))
    assert price(model, TokenUsage(50), reported_usd=None, usd_to_eur=RATE).usd == Decimal("0.000001")


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_the_cost_of_two_calls_equals_the_cost_of_their_sum_exactly(a: int, b: int, c: int, d: int) -> None:
    one = price(PRICED, TokenUsage(a + c, b + d), reported_usd=None, usd_to_eur=RATE)
    two = price(PRICED, TokenUsage(a, b), reported_usd=None, usd_to_eur=RATE)
    two += price(PRICED, TokenUsage(c, d), reported_usd=None, usd_to_eur=RATE)
    assert (one.usd, one.eur) == (two.usd, two.eur)


@given(st.decimals(0, 10**6, places=9))
def test_an_amount_is_written_without_exponent_and_reads_back(amount: Decimal) -> None:
    text = decimal_text(amount.normalize())
    assert "E" not in text
    assert Decimal(text) == amount
