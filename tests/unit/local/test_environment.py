"""Mistakes in `.env` are reported without showing a key."""

import os
from pathlib import Path

import pytest

from local.environment import check_keys, dotenv_notes, read_dotenv
from local.home import ROOT, LocalError
from spass.tenancy.config import GatewayConfig, SearchConfig
from spass.tenancy.config_file import load_gateway_config


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> GatewayConfig:
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    return load_gateway_config(ROOT / "gateway.yaml")


def notes(folder: Path, config: GatewayConfig, text: str) -> list[str]:
    file = folder / ".env"
    file.write_text(text, encoding="utf-8")
    return dotenv_notes(file, config)


@pytest.mark.parametrize("key", ["sk-ant-…", "sk ant", "sk-ant\n", " ", "sk-\x07"])
def test_an_invalid_key_stops_the_start_and_only_its_variable_is_named(
    config: GatewayConfig, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    with pytest.raises(LocalError, match="ANTHROPIC_API_KEY") as refused:
        check_keys(config)
    assert "sk-" not in str(refused.value)


def test_a_key_and_an_empty_variable_pass(config: GatewayConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-api03_Az09.~")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    check_keys(config)


def test_a_misspelt_variable_is_noted_with_a_suggestion(config: GatewayConfig, tmp_path: Path) -> None:
    (note,) = notes(tmp_path, config, "# mine\n\nPORT=3001\nANTHROPC_API_KEY=sk-secret\n")
    assert note == ".env:4: no backend of gateway.yaml uses ANTHROPC_API_KEY; did you mean 'ANTHROPIC_API_KEY'?"


def test_a_line_without_an_equals_sign_is_noted_by_its_number(config: GatewayConfig, tmp_path: Path) -> None:
    actual = notes(tmp_path, config, "OPENAI_API_KEY=sk-1\n\n\nsk-secret\nTWO WORDS\n")
    assert actual == [f".env:{line}: this line has no effect; write NAME=value" for line in (4, 5)]


def test_a_valid_file_and_a_missing_file_give_no_note(config: GatewayConfig, tmp_path: Path) -> None:
    assert dotenv_notes(tmp_path / ".env", config) == []
    assert notes(tmp_path, config, "export OPENAI_API_KEY='sk-1'  # mine\nXAI_API_KEY=\nSPASS_HOME=elsewhere\n") == []


def test_the_example_file_gives_no_note(config: GatewayConfig, tmp_path: Path) -> None:
    example = (ROOT / ".env.example").read_text().splitlines()
    assert notes(tmp_path, config, "\n".join(line[1:] for line in example if line.startswith("#") and line[1:2] != " ")) == []


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes("SPASS_NOTHING=ü\n".encode("latin-1"))
    with pytest.raises(LocalError, match="UTF-8"):
        read_dotenv(file)
    assert "SPASS_NOTHING" not in os.environ


def test_the_key_of_the_search_provider_is_checked_too(
    config: GatewayConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    searching = config.model_copy(update={"search": SearchConfig(provider="tavily")})
    assert notes(tmp_path, searching, "TAVILY_API_KEY=tvly-1\n") == []
    assert len(notes(tmp_path, config, "TAVILY_API_KEY=tvly-1\n")) == 1
    monkeypatch.setenv("TAVILY_API_KEY", "tvly with a blank")
    with pytest.raises(LocalError, match="TAVILY_API_KEY"):
        check_keys(searching)
