"""Configurations for tests of the laptop."""

from pathlib import Path

from local.home import ROOT


def write_config_with_a_notice(file: Path) -> None:
    """Write the shipped ``gateway.yaml`` with a budget and a model without a price, about which there is one notice."""
    text = (ROOT / "gateway.yaml").read_text()
    for key, line in (("models", "- {name: unpriced, context_window: 8000}"), ("defaults", "monthly_budget_usd: 5")):
        before, found, after = text.partition(f"\n{key}:\n")
        assert found
        text = f"{before}{found}  {line}\n{after}"
    file.write_text(text)
