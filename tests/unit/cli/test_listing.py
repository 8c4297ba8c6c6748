"""`spass kinds`, `spass agents` and `spass tools`."""

from typing import Any

from spass.testing.http_server import json_answer
from tests.unit.cli.command import spass
from tests.unit.sdk.fake_gateway import fake_gateway


def test_kinds_are_listed_with_the_reason_if_one_is_not_available() -> None:
    kind = {"description": "Run code.", "accepts_tools": True, "multi_turn": True, "params": {}, "reason": None}
    kinds = [{**kind, "key": "rlm", "available": True}, {**kind, "key": "openhands", "available": False, "reason": "no Docker"}]
    with fake_gateway(lambda _: json_answer({"kinds": kinds})) as gateway:
        assert spass(gateway.url, "kinds").out == "rlm        Run code.\nopenhands  not available: no Docker\n"


def test_agents_are_listed_in_aligned_columns() -> None:
    agents: list[dict[str, Any]] = [
        {"name": name, "kind": "simple", "model": "m", "description": f"About {name}.", "tools": [], "rag_index": None}
        for name in ("a", "researcher")
    ]
    with fake_gateway(lambda _: json_answer({"agents": agents, "next_cursor": None})) as gateway:
        code, out, _ = spass(gateway.url, "agents")
    assert (code, out) == (0, "a           simple  m  About a.\nresearcher  simple  m  About researcher.\n")


def test_tools_are_listed_with_category_and_first_line_of_description() -> None:
    function = {"name": "calculator", "description": "Compute.\n\nWrite Python.", "parameters": {}}
    with fake_gateway(
        lambda _: json_answer({"tools": [{"type": "function", "function": function, "category": "math"}]})
    ) as gateway:
        assert spass(gateway.url, "tools").out == "calculator  math  Compute.\n"


def test_an_empty_list_prints_nothing() -> None:
    with fake_gateway(lambda _: json_answer({"tools": []})) as gateway:
        assert spass(gateway.url, "tools") == (0, "", "")
