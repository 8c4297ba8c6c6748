"""A tenant's own settings: who may change them, where each comes from, and that they hold."""

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.functions.gateway import Gateway, described

ADMIN = "demo-admin-token"
PATH = "/v1/tenant/config"
AGENT = "/a1/agents/plain"
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hello?"}]}


def _config(gateway: Gateway) -> Any:
    return gateway.send("GET", PATH).json


def test_before_anybody_said_anything_every_setting_is_the_process_own(gateway: Gateway) -> None:
    answer = _config(gateway)
    assert set(answer["config"]) == set(answer["sources"])
    assert set(answer["sources"].values()) == {"process"}
    assert answer["config"]["rag_top_k"] == 5


def test_what_an_admin_puts_holds_at_once_and_says_that_it_is_the_tenants_own(gateway: Gateway) -> None:
    changed = gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 7, "monthly_budget_usd": 12.5})
    assert changed.status == 200
    assert changed.json == _config(gateway)
    assert changed.json["config"]["rag_top_k"] == 7
    assert changed.json["config"]["monthly_budget_usd"] == 12.5
    own = {key for key, source in changed.json["sources"].items() if source == "db"}
    assert own == {"rag_top_k", "monthly_budget_usd"}


def test_a_partial_object_leaves_the_rest_and_null_gives_a_setting_back(gateway: Gateway) -> None:
    gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 7, "memory": "The door code is on the fridge."})
    answer = gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": None}).json
    assert (answer["config"]["rag_top_k"], answer["sources"]["rag_top_k"]) == (5, "process")
    assert answer["sources"]["memory"] == "db"


def test_the_file_stands_between_the_process_and_the_tenant(gateway: Gateway, tmp_path: Any) -> None:
    told = gateway.reconfigured(
        tmp_path / "told", "  - id: demo\n", "  - id: demo\n    defaults: {rag_top_k: 9, memory: In the file.}\n"
    )
    answer = _config(told)
    assert (answer["config"]["rag_top_k"], answer["sources"]["rag_top_k"]) == (9, "yaml")
    answer = told.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 3}).json
    assert (answer["config"]["rag_top_k"], answer["sources"]["rag_top_k"]) == (3, "db")
    assert (answer["config"]["memory"], answer["sources"]["memory"]) == ("In the file.", "yaml")


def test_an_empty_object_changes_nothing_and_says_what_holds(gateway: Gateway) -> None:
    assert gateway.send("PUT", PATH, token=ADMIN, body={}).json == _config(gateway)


def test_only_an_admins_token_changes_anything(gateway: Gateway) -> None:
    before = gateway.stored()
    for method, path, body in (("PUT", PATH, {"rag_top_k": 7}), ("PUT", PATH, {"nonsense": 1}), ("DELETE", "/v1/usage", None)):
        reply = gateway.send(method, path, body=body)
        assert (reply.status, reply.code, reply.json["error"]["type"]) == (403, "admin_required", "permission_error")
    assert gateway.stored() == before


def test_one_tenants_settings_are_no_other_tenants(gateway: Gateway) -> None:
    gateway.send("PUT", PATH, token=ADMIN, body={"memory": "private", "tokens_per_minute": 5})
    for token in ("other-token", "sibling-token"):
        answer = gateway.send("GET", PATH, token=token)
        assert "private" not in answer.text
        assert answer.json["sources"]["tokens_per_minute"] == "process"


def test_an_idempotency_key_is_of_posts_alone(gateway: Gateway) -> None:
    key = {"Idempotency-Key": "same"}
    gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 7}, headers=key)
    again = gateway.send("PUT", PATH, token=ADMIN, body={"rag_top_k": 8}, headers=key)
    assert again.json["config"]["rag_top_k"] == 8
    assert "idempotency-replayed" not in again.headers


def test_another_process_hears_of_it_too(gateway: Gateway, tmp_path: Any) -> None:
    gateway.send("PUT", PATH, token=ADMIN, body={"system_prompt": "Answer in verse."})
    other = gateway.reconfigured(tmp_path / "other", "usd_to_eur: 0.5", "usd_to_eur: 0.5")
    other.send("POST", "/v1/chat/completions", body=CHAT)
    assert "Answer in verse." in str(other.model.requests[-1].messages[0].content)


def test_an_admins_next_request_meets_the_change_anywhere_others_within_a_minute(gateway: Gateway, tmp_path: Path) -> None:
    """In AWS each route is a function of its own."""
    elsewhere = gateway.reconfigured(tmp_path / "elsewhere", "usd_to_eur: 0.5", "usd_to_eur: 0.6")
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
def test_a_budget_that_an_admin_sets_holds_for_its_next_call_in_whatever_process(
    gateway: Gateway, tmp_path: Path, target: str
) -> None:
    body = CHAT if target.startswith("/v1") else {"message": "Hello?"}
    elsewhere = gateway.reconfigured(tmp_path / "elsewhere", "usd_to_eur: 0.5", "usd_to_eur: 0.6")
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


def test_the_description_of_the_body_says_what_each_setting_may_be(gateway: Gateway) -> None:
    document = described()
    schema = document["paths"][PATH]["put"]["requestBody"]["content"]["application/json"]["schema"]
    body = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    assert BOUNDS.keys() == _config(gateway)["config"].keys()
    for key, (good, bad) in BOUNDS.items():
        for value, allowed in ((good, True), (bad, False), (None, True)):
            assert body.is_valid({key: value}) is allowed, (key, value)
            assert (gateway.send("PUT", PATH, token=ADMIN, body={key: value}).status == 200) is allowed, (key, value)
    assert not body.is_valid({"nonsense": 1})
