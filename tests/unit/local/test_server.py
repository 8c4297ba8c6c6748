"""The laptop's app reads the operator's files at its start and leaves warnings to the banner."""

from pathlib import Path

import pytest

from local.home import ROOT
from local.server import local_services


def test_a_warning_is_not_logged_because_the_banner_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text((ROOT / "gateway.yaml").read_text().replace("\ndefaults:\n", "\ndefaults:\n  rag_top_k: 7\n"))
    monkeypatch.setenv("SPASS_CONFIG", str(file))
    monkeypatch.setenv("SPASS_AGENTS", str(ROOT / "agents"))
    local_services()
    assert "rag_top_k: 7" in file.read_text()
    assert capsys.readouterr().out == ""
