"""The models that a token can name: the list, single models, and calls without a backend."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.functions.gateway import Gateway

LLAMA = "meta-llama/llama-4:scout"
MORE_MODELS = f"""models:
  - {{name: unserved, context_window: 8000}}
  - {{name: "{LLAMA}", context_window: 8000, created: 2025-04-05}}
"""


@pytest.fixture
def catalogue(gateway: Gateway, tmp_path: Path) -> Gateway:
    """A gateway without agents, with one model that no backend serves, and one whose name has slashes and colons."""
    served = gateway.reconfigure(tmp_path / "served", "[small, dear, mini-embed]", f'[small, dear, mini-embed, "{LLAMA}"]')
    for file in served.services.settings.agents.iterdir():
        file.unlink()
    config = served.services.settings.config
    config.write_text(config.read_text().replace("models:\n", MORE_MODELS))
    return served


def list_models(gateway: Gateway, token: str) -> list[Any]:
    answer = gateway.send("GET", "/v1/models", token=token)
    assert answer.status == 200
    data: list[Any] = answer.json["data"]
    return data


def test_the_list_has_the_models_that_are_served_and_allowed(catalogue: Gateway) -> None:
    assert [model["id"] for model in list_models(catalogue, "demo-admin-token")] == [LLAMA, "small", "dear", "mini-embed"]
    assert [model["id"] for model in list_models(catalogue, "demo-token")] == ["small", "mini-embed"]


def test_a_model_has_its_kind_and_day_of_release(catalogue: Gateway) -> None:
    models = {model["id"]: model for model in list_models(catalogue, "demo-admin-token")}
    assert {name: model["kind"] for name, model in models.items()} == {
        LLAMA: "chat",
        "small": "chat",
        "dear": "chat",
        "mini-embed": "embedding",
    }
    assert datetime.fromtimestamp(models[LLAMA]["created"], UTC) == datetime(2025, 4, 5, tzinfo=UTC)
    assert datetime.fromtimestamp(models["small"]["created"], UTC).year >= 2026


def test_each_listed_model_is_found_by_its_name(catalogue: Gateway) -> None:
    for model in list_models(catalogue, "demo-token"):
        assert catalogue.send("GET", f"/v1/models/{model['id']}").json == model


@pytest.mark.parametrize("escaped", [LLAMA, "meta-llama%2Fllama-4%3Ascout", "meta-llama%2fllama-4:scout"])
def test_a_name_may_have_slashes_and_colons_escaped_or_not(catalogue: Gateway, escaped: str) -> None:
    answer = catalogue.send("GET", f"/v1/models/{escaped}", token="demo-admin-token")
    assert answer.json["id"] == LLAMA


@pytest.mark.parametrize("name", ["absent", "unserved", "dear", "%2Fsmall", "small%00", "..", "a%2F..%2Fsmall"])
def test_any_other_model_is_not_found(catalogue: Gateway, name: str) -> None:
    answer = catalogue.send("GET", f"/v1/models/{name}")
    assert answer.code == ("route_not_found" if "%00" in name else "model_not_found")


def test_a_call_of_an_unserved_model_tells_sdks_not_to_retry(catalogue: Gateway) -> None:
    body = {"model": "unserved", "messages": [{"role": "user", "content": "Hi"}]}
    answer = catalogue.send("POST", "/v1/chat/completions", body=body, token="demo-admin-token")
    assert (answer.status, answer.code) == (503, "no_backend_available")
    assert answer.headers["x-should-retry"] == "false"
    assert "its key may be missing" in answer.json["error"]["message"]


def test_a_call_that_is_too_deep_tells_sdks_not_to_retry(gateway: Gateway) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
    answer = gateway.send("POST", "/v1/chat/completions", body=body, headers={"SPASS-Caller-Depth": "3"})
    assert (answer.status, answer.headers["x-should-retry"]) == (508, "false")


def test_other_failures_leave_the_decision_to_the_sdk(gateway: Gateway) -> None:
    answer = gateway.send("POST", "/v1/chat/completions", body={"model": "dear", "messages": []}, token="demo-admin-token")
    assert answer.status == 400
    assert "x-should-retry" not in answer.headers
