"""A tenant's own settings: who may change them, their sources, and when a change takes effect."""

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.functions.gateway import Gateway, openapi_document

ADMIN = "demo-admin-token"
PATH = "/v1/tenant/config"
AGENT = "/a1/agents/plain"
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hello?"}]}


def _config(gateway: Gateway) -> Any:
    return gateway.send("GET", PATH).json


def test_without_stored_settings_every_source_is_process(gateway: Gateway) -> None:
    answer = _config(gateway)
    assert set(answer["config"]) == set(answer["sources"])
    assert set(answer["sources"].values()) == {"process"}
    assert answer["config"]["rag_top_k"] == 5


def test_a_change_takes_effect_immediately_with_source_db(gateway: Gateway) -> None:
    changed = gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 7, "monthly_budget_usd": 12.5})
    assert changed.status == 200
    assert changed.json == _config(gateway)
    assert changed.json["config"]["rag_top_k"] == 7
    assert changed.json["config"]["monthly_budget_usd"] == 12.5
    stored = {key for key, source in changed.json["sources"].items() if source == "db"}
    assert stored == {"rag_top_k", "monthly_budget_usd"}


def test_a_change_keeps_other_settings_and_null_clears_one(gateway: Gateway) -> None:
    gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 7, "memory": "The door code is on the fridge."})
    answer = gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": None}).json
    assert (answer["config"]["rag_top_k"], answer["sources"]["rag_top_k"]) == (5, "process")
    assert answer["sources"]["memory"] == "db"


def test_the_file_overrides_the_process_and_the_tenant_the_file(gateway: Gateway, tmp_path: Any) -> None:
    other = gateway.reconfigure(
        tmp_path / "other", "  - id: demo\n", "  - id: demo\n    defaults: {rag_top_k: 9, memory: In the file.}\n"
    )
    answer = _config(other)
    assert (answer["config"]["rag_top_k"], answer["sources"]["rag_top_k"]) == (9, "yaml")
    answer = other.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 3}).json
    assert (answer["config"]["rag_top_k"], answer["sources"]["rag_top_k"]) == (3, "db")
    assert (answer["config"]["memory"], answer["sources"]["memory"]) == ("In the file.", "yaml")


def test_an_admin_cannot_lift_the_operators_ceilings(gateway: Gateway, tmp_path: Path) -> None:
    other = gateway.reconfigure(
        tmp_path / "other", "  - id: demo\n", "  - id: demo\n    limits: {monthly_budget_usd: 2, tokens_per_minute: 500}\n"
    )
    before = gateway.stored()
    for change in ({"monthly_budget_usd": 2.5}, {"tokens_per_minute": 501}, {"rag_top_k": 3, "monthly_budget_usd": 10**9}):
        refused = other.send("PUT", PATH, token=ADMIN, body=change)
        assert (refused.status, refused.code, refused.json["error"]["param"]) == (403, "above_ceiling", [*change][-1])
        key, value = [*change.items()][-1]
        ceiling = {"monthly_budget_usd": 2, "tokens_per_minute": 500}[key]
        assert refused.json["error"]["details"] == {"key": key, "value": value, "ceiling": ceiling}
    assert gateway.stored() == before
    cleared = other.send("PUT", PATH, token=ADMIN, body={"monthly_budget_usd": None, "tokens_per_minute": 500})
    assert cleared.json["ceilings"] == {"monthly_budget_usd": 2, "tokens_per_minute": 500}
    assert (cleared.json["config"]["monthly_budget_usd"], cleared.json["config"]["tokens_per_minute"]) == (2, 500)
    assert cleared.json == other.send("GET", PATH).json


def test_without_ceilings_the_answer_has_none(gateway: Gateway) -> None:
    assert _config(gateway).keys() == {"config", "sources"}
    assert gateway.send("PUT", PATH, token=ADMIN, body={"monthly_budget_usd": 10**9}).json.keys() == {"config", "sources"}


def test_an_empty_change_answers_the_effective_settings(gateway: Gateway) -> None:
    assert gateway.send("PUT", PATH, token=ADMIN, body={}).json == _config(gateway)


def test_changes_need_an_admins_token(gateway: Gateway) -> None:
    before = gateway.stored()
    for method, path, body in (("PUT", PATH, {"rag_top_k": 7}), ("PUT", PATH, {"nonsense": 1}), ("DELETE", "/v1/usage", None)):
        reply = gateway.send(method, path, body=body)
        assert (reply.status, reply.code, reply.json["error"]["type"]) == (403, "admin_required", "permission_error")
    assert gateway.stored() == before


def test_tenants_do_not_see_each_others_settings(gateway: Gateway) -> None:
    gateway.send("PUT", PATH, token=ADMIN, body={"memory": "private", "tokens_per_minute": 5})
    for token in ("other-token", "sibling-token"):
        answer = gateway.send("GET", PATH, token=token)
        assert "private" not in answer.text
        assert answer.json["sources"]["tokens_per_minute"] == "process"


def test_a_put_ignores_the_idempotency_key(gateway: Gateway) -> None:
    key = {"Idempotency-Key": "same"}
    gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 7}, headers=key)
    second = gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 8}, headers=key)
    assert second.json["config"]["rag_top_k"] == 8
    assert "idempotency-replayed" not in second.headers


def test_another_process_uses_the_change(gateway: Gateway, tmp_path: Any) -> None:
    gateway.send("PUT", PATH, token=ADMIN, body={"system_prompt": "Answer in verse."})
    other = gateway.reconfigure(tmp_path / "other", "usd_to_eur: 0.5", "usd_to_eur: 0.5")
    other.send("POST", "/v1/chat/completions", body=CHAT)
    assert "Answer in verse." in str(other.model.requests[-1].messages[0].content)


def test_an_admins_next_request_uses_the_change_in_every_process(gateway: Gateway, tmp_path: Path) -> None:
    """In AWS each route runs in its own process."""
    elsewhere = gateway.reconfigure(tmp_path / "elsewhere", "usd_to_eur: 0.5", "usd_to_eur: 0.6")
    for token in (ADMIN, "demo-token"):
        elsewhere.send("POST", "/v1/chat/completions", token=token, body=CHAT)
        assert elsewhere.send("GET", AGENT, token=token).json["rag_top_k"] == 5
    change = {"rag_top_k": 7, "monthly_budget_usd": 0, "system_prompt": "Be kind.", "compact_keep_last_n": 3}
    gateway.send("PUT", PATH, token=ADMIN, body=change)
    assert elsewhere.send("GET", AGENT).json["rag_top_k"] == 5
    assert elsewhere.send("GET", AGENT, token=ADMIN).json["rag_top_k"] == 7
    gateway.send("PUT", PATH, token=ADMIN, body={"compact_keep_last_n": 4})
    session = elsewhere.send("POST", f"{AGENT}/sessions", token=ADMIN, body={}).json
    assert session["compact_keep_last_n"] == 4


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/a1/agents/plain/chat"])
def test_a_budget_applies_to_the_admins_next_call_in_every_process(gateway: Gateway, tmp_path: Path, target: str) -> None:
    body = CHAT if target.startswith("/v1") else {"message": "Hello?"}
    elsewhere = gateway.reconfigure(tmp_path / "elsewhere", "usd_to_eur: 0.5", "usd_to_eur: 0.6")
    assert elsewhere.send("POST", target, token=ADMIN, body=body).status == 200
    gateway.send("PUT", PATH, token=ADMIN, body={"monthly_budget_usd": 0})
    refused = elsewhere.send("POST", target, token=ADMIN, body=body)
    assert (refused.status, refused.code) == (429, "budget_exceeded")


BOUNDS = {
    "compact_strategy": ("off", "never"),
    "compact_keep_last_n": (200, 201),
    "compact_observation_mask": (False, 0),
    "compact_summary_model": ("small", "s" * 129),
    "system_prompt": ("x" * 32768, "x" * 32769),
    "memory": ("x" * 16384, "x" * 16385),
    "tools_enabled_default": (["calculator"] * 128, ["calculator"] * 129),
    "rag_top_k": (50, 51),
    "monthly_budget_usd": (10**9, 10**9 + 1),
    "tokens_per_minute": (10**12, 10**12 + 1),
}


def test_the_schema_of_the_body_has_the_bounds_of_each_setting(gateway: Gateway) -> None:
    document = openapi_document()
    schema = document["paths"][PATH]["put"]["requestBody"]["content"]["application/json"]["schema"]
    body = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    assert BOUNDS.keys() == _config(gateway)["config"].keys()
    for key, (good, bad) in BOUNDS.items():
        for value, allowed in ((good, True), (bad, False), (None, True)):
            assert body.is_valid({key: value}) is allowed, (key, value)
            assert (gateway.send("PUT", PATH, token=ADMIN, body={key: value}).status == 200) is allowed, (key, value)
    assert not body.is_valid({"nonsense": 1})
