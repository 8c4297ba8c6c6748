"""The directors of a started gateway with the stand-in model. Edits and approvals are in ``test_directors_with_models.py``."""

from typing import Final

import pytest

from local.example_workspace import FILES
from tests.e2e.conftest import Gateway
from tests.stream_grammar import answer_text, of_type, parse_events

MODEL: Final = "ollama/qwen2.5-coder:7b-instruct"
DIRECTORS: Final = ["architect", "dir-code", "dir-models", "dir-data", "dir-devsecops", "dir-docs"]


@pytest.mark.parametrize("director", DIRECTORS)
def test_each_director_answers_what_is_in_the_files(gateway: Gateway, director: str) -> None:
    question = {"message_id": f"files-{director}", "messages": [{"role": "user", "content": "What files are in src/?"}]}
    with gateway.client() as client:
        answer = client.post(f"/c1/agents/{director}/chat", json=question).raise_for_status()
    events = parse_events(answer.text)
    (listed,) = of_type(events, "tool_call")
    assert (listed["tool"], listed["rich"][0]["kind"]) == ("list_directory", "file_tree")
    assert "src/main.py" in answer_text(events)


def test_the_directors_model_is_a_model_of_the_gateway(gateway: Gateway) -> None:
    with gateway.client() as client:
        listed = {model["id"] for model in client.get("/v1/models").json()["data"]}
        assert {MODEL, *(f"agent/{director}" for director in DIRECTORS)} <= listed
        for name in (MODEL, MODEL.replace("/", "%2F")):
            assert client.get(f"/v1/models/{name}").json()["id"] == MODEL
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Mein Sport ist Tennis. Was ist mein Sport?"}]}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert "Tennis" in answer["choices"][0]["message"]["content"]


def test_a_new_gateway_has_the_example_for_the_tenant_demo(gateway: Gateway) -> None:
    with gateway.client() as client:
        (first,) = [one for one in client.get("/a1/workspaces/default/versions").json()["versions"] if one["version"] == 1]
        assert (first["added"], first["user"]) == (len(FILES), "make-run")
    with gateway.client("other-token") as client:
        assert client.get("/a1/workspaces/default").status_code == 404
