"""The bench of edits makes real edits, and its dollars are those of the calls that it counted."""

import platform
from pathlib import Path

import pytest

from bench.edit import EDITS, EditBench, ProcessFigures, describe_price
from infra.costs.prices import ResourceUsage
from tests.unit.tools.editor.scripted import PACKAGES

pytestmark = pytest.mark.anyio


async def test_a_process_makes_a_cold_and_a_warm_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPASS_EDITOR", str(PACKAGES))
    figures = await EditBench(tmp_path).run(edits=1)
    assert len(figures.seconds) == len(figures.processor) == 2
    assert (figures.gets, figures.puts) == (2, 2), "the file, and its body again to compare it"
    assert figures.write_units > 0
    assert (figures.child_bytes > 10_000_000) == (platform.system() == "Linux")


def test_edits_cost_what_the_list_says() -> None:
    figures = ProcessFigures(read_units=3, write_units=11, puts=2, gets=1)
    usage = ResourceUsage(3, 11, 6 * 1769 / 1024, 0, bucket_puts=2, bucket_gets=1)
    text = describe_price(figures, seconds=1.0)
    assert f"{sum(usage.dollars(EDITS).values()):.2f} USD" in text
    assert "3 read and 11 write units" in text
