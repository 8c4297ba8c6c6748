"""Each director chats: the stand-in answers in the forms of Ollama and Anthropic, over real providers and the shipped files."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from local.example_workspace import FILES, create_example_workspace
from spass.aws.clients import Aws
from spass.web.services import Services, Settings
from tests.functions.gateway import BUCKET, TABLE, Gateway, Reply
from tests.functions.standin_wires import serve_standin
from tests.stream_grammar import answer_text, read_events

ROOT: Final = Path(__file__).parents[2]
DIRECTORS: Final = ["architect", "dir-code", "dir-models", "dir-data", "dir-devsecops", "dir-docs"]
MODELS: Final = {"ollama": None, "anthropic": "claude-haiku-4.5"}
TOKEN: Final = hashlib.sha256(b"demo-token").hexdigest()
WORKSPACE: Final = "/a1/workspaces/default"
Chat = Callable[[str, str], list[dict[str, Any]]]


@pytest.fixture
def bodies() -> list[dict[str, Any]]:
    """Return the requests that the model receives."""
    return []


@pytest.fixture(params=MODELS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def chat(
    gateway: Gateway, aws: Aws, form: str, bodies: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Chat]:
    """A chat with a director of the shipped files. Anthropic's model has to be named, because it is not the directors'."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    monkeypatch.setenv("SPASS_EDITOR", str(ROOT / ".venv-editor"))
    with serve_standin(form, bodies) as url:
        file = tmp_path / "shipped.yaml"
        text = (
            (ROOT / "gateway.yaml")
            .read_text()
            .split("\ntenants:")[0]
            .replace(f"provider: {form}\n", f"provider: {form}\n      base_url: {url}\n")
        )
        file.write_text(f"{text}\ntenants: [{{id: demo, tokens: [{{id: demo, sha256: {TOKEN}}}]}}]\n")
        services = Services(Settings(config=file, agents=ROOT / "agents", table=TABLE, bucket=BUCKET))
        services.aws = aws
        gateway.services = services  # type: ignore[assignment]  # not scripted
        gateway.run(create_example_workspace(services))
        numbers = iter(range(100))

        def send(director: str, question: str) -> list[dict[str, Any]]:
            body = {"message_id": f"m-{next(numbers)}", "session_id": "walk", "messages": [{"role": "user", "content": question}]}
            named = {"model": MODELS[form]} if MODELS[form] else {}
            reply: Reply = gateway.send("POST", f"/c1/agents/{director}/chat", body=body | named)
            return read_events(reply)

        yield send
        gateway.run(services.aclose())


def calls_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "tool_call"]


@pytest.mark.parametrize("director", DIRECTORS)
def test_each_director_lists_and_reads_the_files(chat: Chat, director: str) -> None:
    (listed,) = calls_in(chat(director, "What files are in src/?"))
    assert (listed["tool"], listed["args"]) == ("list_directory", {"path": "src"})
    (tree,) = listed["rich"]
    assert (tree["kind"], [entry["path"] for entry in tree["entries"]]) == ("file_tree", ["src/main.py", "src/util.py"])
    events = chat(director, "What's in src/main.py?")
    (read,) = calls_in(events)
    assert (read["tool"], read["rich"][0]["kind"], read["rich"][0]["text"]) == ("read_file", "file", FILES["src/main.py"])
    assert "def main() -> None:" in answer_text(events)


def test_a_director_reaches_its_backend_under_the_backends_own_name(chat: Chat, bodies: list[dict[str, Any]], form: str) -> None:
    chat("dir-code", "What files are in src/?")
    names = {"ollama": "qwen2.5-coder:7b-instruct", "anthropic": "claude-haiku-4-5"}
    assert {body["model"] for body in bodies} == {names[form]}
    if form == "ollama":
        assert {body["options"]["num_ctx"] for body in bodies} == {32_768}


def test_an_edit_is_a_version_that_names_its_turn_and_its_call(chat: Chat, gateway: Gateway) -> None:
    instruction = "Add a docstring to main() in src/main.py"
    chat("dir-code", "What's in src/main.py?")
    events = chat("dir-code", instruction)
    (edit,) = calls_in(events)
    assert (edit["tool"], edit["args"]["files"], edit["ok"]) == ("aider_edit", ["src/main.py"], True)
    (diff,) = edit["rich"]
    assert (diff["kind"], diff["added"], diff["removed"]) == ("diff", 1, 0)
    assert '+    """Run the program."""\n' in diff["unified"]
    file = gateway.send("GET", f"{WORKSPACE}/file?path=src/main.py")
    assert file.text == FILES["src/main.py"].replace("None:\n", 'None:\n    """Run the program."""\n')
    newest, first = gateway.send("GET", f"{WORKSPACE}/versions").json["versions"]
    named = {name: newest[name] for name in ("version", "message", "agent", "user", "message_id", "changed")}
    assert named == {
        "version": 2,
        "message": instruction,
        "agent": "dir-code",
        "user": "ada",
        "message_id": "m-1",
        "changed": 1,
    }
    assert newest["session_id"] == events[0]["session_id"]
    assert newest["run_id"].startswith("turn_")
    request = events[0]["request_id"]
    audited = gateway.send("GET", f"/v1/audit/{request}", headers={"SPASS-User-Id": "ada"}).json["calls"]
    (call,) = [one for one in audited if one["tool"] == "aider_edit"]
    assert newest["parent_log_id"] == call["request_id"]
    assert [inner["kind"] for inner in call["calls"]] == ["chat"]
    restored = gateway.send("POST", f"{WORKSPACE}/restore", body={"version": first["version"]})
    assert restored.json["version"] == 3
    assert gateway.send("GET", f"{WORKSPACE}/file?path=src/main.py").text == FILES["src/main.py"]
