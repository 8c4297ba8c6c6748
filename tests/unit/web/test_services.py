"""The services read the operator's file: warnings are logged, and errors stop the start."""

import json
from pathlib import Path

import pytest

from spass.tenancy.yaml_source import ConfigError
from spass.web.services import Services, Settings

CONFIG = """
llm:
  backends:
    - {name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}
    - {name: far, provider: openai, api_key_env: SOME_KEY, base_url: "http://gpu.example"}
models: [{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}]
"""


def test_a_warning_about_the_file_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG)
    services = Services(Settings(config=path, agents=tmp_path, table="spass", bucket="spass"))
    assert services.config is services.config
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["level"], line["event"]) == ("warning", "config_notice")
    assert line["notice"] == "gateway.yaml:5: far's key goes over the network in the clear; write https"


def test_a_notice_about_an_agents_file_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.replace("http://", "https://").replace("[{", "[{name: talker, context_window: 1000}, {"))
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "a.yaml").write_text("name: a\nmodel: talker\nkind: simple\ntools: [calculator]\n")
    services = Services(Settings(config=path, agents=folder, table="spass", bucket="spass"))
    assert services.agents is services.agents
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["level"], line["event"]) == ("warning", "config_notice")
    assert line["notice"].startswith("a.yaml:4: tools: the kind simple of 'a' uses no tools")


def test_an_unknown_tool_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG + "defaults:\n  tools_enabled_default: [calculater]\n")
    services = Services(Settings(config=path, agents=tmp_path, table="spass", bucket="spass"))
    with pytest.raises(ConfigError, match=r"gateway.yaml:8: .*'calculater' is not a tool of this gateway"):
        _ = services.config


@pytest.mark.parametrize(
    ("variables", "telemetry", "namespace"),
    [
        ({}, False, None),
        ({"SPASS_TELEMETRY": "1"}, True, None),
        ({"SPASS_TELEMETRY": "0", "SPASS_METRICS_NAMESPACE": ""}, False, None),
        ({"SPASS_METRICS_NAMESPACE": "Spass/prod"}, False, "Spass/prod"),
    ],
)
def test_telemetry_is_logged_if_the_environment_switches_it_on(
    variables: dict[str, str], telemetry: bool, namespace: str | None
) -> None:
    settings = Settings.from_environment(variables)
    assert (settings.telemetry, settings.metrics_namespace) == (telemetry, namespace)
