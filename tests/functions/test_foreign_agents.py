"""Foreign agents from outside: through POST /v1/ask, as agents with a file and as streams. The SDKs are stand-ins."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from spass.core.time import Deadline
from spass.sandbox.foreign import versions
from spass.web.services import Settings
from tests.functions.gateway import Gateway, Reply
from tests.stream_grammar import collect_ask, comparable_ask, read_events
from tests.unit.calls.planted_secrets import BATCHES, BY_VALUE, leaked_kinds, text_with_secrets
from tests.unit.sandbox.foreign.stand_ins import StandIns
from tests.unit.sandbox.process_list import wait_for_processes

ANSWERS = {"openhands": "conversation.say('Done.')", "claude_code": "return [end('Done.')]"}
WITH_CALL = {
    "openhands": """conversation.call("terminal", '{"command": "ls"}', "a.txt"); conversation.say("Done.")""",
    "claude_code": """return [call("a", "Bash", {command: "ls"}), result("a", "a.txt"), end("Done.")]""",
}
KINDS = tuple(ANSWERS)


def ask(gateway: Gateway, stand_ins: StandIns, kind: str, code: str, *, token: str = "demo-token", **body: Any) -> Reply:
    params = {"workspace": str(stand_ins.workspace), **body.pop("params", {})}
    return gateway.send("POST", "/v1/ask", token=token, body={"input": code, "agent": kind, "params": params, **body})


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_has_content_one_turn_metadata_usage_and_cost(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    reply = ask(gateway, stand_ins, kind, WITH_CALL[kind])
    assert reply.status == 200, reply.text
    answer = reply.json
    (tool,) = answer.pop("tool_results")
    assert (json.loads(tool["content"]), tool["success"]) == ({"output": "a.txt"}, True)
    usd = 0.25 if kind == "openhands" else 0.5
    metadata = answer.pop("metadata")
    assert metadata["cost_usd"] == usd
    assert metadata.get("session_id") == (None if kind == "openhands" else "0a-1")
    usage = {"openhands": (30, 4, 34), "claude_code": (25, 3, 28)}[kind]
    assert answer == {
        "request_id": reply.headers["spass-request-id"],
        "agent": kind,
        "kind": kind,
        "model": "small" if kind == "openhands" else "claude-x",
        "content": "Done.",
        "turns": 1,
        "finish_reason": "stop",
        "usage": dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), usage, strict=True)),
    }
    assert reply.headers["spass-cost-usd"] == str(usd)
    assert (reply.headers["spass-cost-source"], reply.headers["spass-cost-sub-calls"]) == ("upstream", "1")
    assert gateway.model.requests == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_has_one_record_of_a_run_and_the_usage_counts_it(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    reply = ask(gateway, stand_ins, kind, ANSWERS[kind])
    path = f"/v1/audit/{reply.json['request_id']}"
    (call,) = gateway.send("GET", path, token="demo-admin-token").json["calls"]
    assert (call["kind"], call["backend"], call["status"], call["agent"]) == ("chat", kind, "ok", kind)
    assert call["model"] == ("small" if kind == "openhands" else "claude_code")
    assert call["cost_usd"] == ("0.25" if kind == "openhands" else "0.5")
    total = gateway.send("GET", "/v1/usage", token="demo-admin-token").json["total"]
    assert total["cost_usd"] == call["cost_usd"]
    assert total["total_tokens"] == reply.json["usage"]["total_tokens"]


def test_the_cost_of_a_run_has_no_noise_of_floats(gateway: Gateway, stand_ins: StandIns) -> None:
    reply = ask(gateway, stand_ins, "claude_code", "return [end('Done.', {total_cost_usd: 0.1 + 0.2})]")
    assert reply.headers["spass-cost-usd"] == "0.3"
    assert reply.json["metadata"]["cost_usd"] == 0.3
    total = gateway.send("GET", "/v1/usage", token="demo-admin-token").json["total"]
    assert total["cost_usd"] == "0.3"


def test_a_reply_names_the_model_that_wrote_most(gateway: Gateway, stand_ins: StandIns) -> None:
    used = "{'small-one': {outputTokens: 20}, 'large-one': {outputTokens: 900}}"
    code = f"return [end('Done.', {{modelUsage: {used}}})]"
    reply = ask(gateway, stand_ins, "claude_code", code)
    assert (reply.json["model"], reply.json["metadata"]["models"]) == ("large-one", ["large-one", "small-one"])
    streamed = read_events(ask(gateway, stand_ins, "claude_code", code, stream=True))
    assert collect_ask(streamed)["model"] == "large-one"
    nameless = ask(gateway, stand_ins, "claude_code", "return [end('Done.', {modelUsage: {}})]")
    assert nameless.json["model"] == "claude_code"


@pytest.mark.parametrize("kind", KINDS)
def test_a_spent_budget_stops_the_next_run(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    gateway.set_config(monthly_budget_usd=0.2)
    assert ask(gateway, stand_ins, kind, ANSWERS[kind]).status == 200
    refused = ask(gateway, stand_ins, kind, ANSWERS[kind])
    assert (refused.status, refused.code) == (429, "budget_exceeded")
    total = gateway.send("GET", "/v1/usage", token="demo-admin-token").json["total"]
    assert total["cost_usd"] == ("0.25" if kind == "openhands" else "0.5")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_equals_the_answer(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    blocking = ask(gateway, stand_ins, kind, WITH_CALL[kind], system_prompt="Be brief.")
    streamed = ask(gateway, stand_ins, kind, WITH_CALL[kind], system_prompt="Be brief.", stream=True)
    collected, expected = collect_ask(read_events(streamed)), comparable_ask(blocking.json)
    if kind == "claude_code":  # the stand-in reports the same sum again
        collected["metadata"].pop("cost_usd"), expected["metadata"].pop("cost_usd")
    assert collected == expected


def write_agent(gateway: Gateway, name: str, **keys: object) -> None:
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
    (gateway.services.settings.agents / f"{name}.yaml").write_text(f"name: {name}\nmodel: small\n{lines}")


@pytest.mark.parametrize("kind", KINDS)
def test_an_agents_file_names_the_workspace(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    write_agent(gateway, "coder", kind=kind, workspace=str(stand_ins.workspace), timeout=20)
    write_agent(gateway, "lost", kind=kind)
    session = gateway.send("POST", "/a1/agents/coder/sessions").json["id"]
    path = f"/a1/agents/coder/sessions/{session}/messages"
    first = gateway.send("POST", path, body={"message": WITH_CALL[kind]})
    assert first.status == 200, first.text
    assert (first.json["message"]["content"], first.json["turns"], len(first.json["tool_calls"])) == ("Done.", 1, 1)
    history = gateway.send("GET", f"/a1/agents/coder/sessions/{session}/messages").json["messages"]
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant"]
    described = gateway.send("GET", "/a1/agents/coder").json
    assert (described["workspace"], described["timeout"]) == (str(stand_ins.workspace), 20)
    lost = gateway.send("POST", "/a1/agents/lost/chat", body={"message": "x"})
    assert (lost.status, lost.code, lost.json["error"]["param"]) == (400, "invalid_request", "params.workspace")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["", "app", "/etc", "{root}/../outside", "{root}/link", "{root}/absent"])
def test_another_workspace_is_refused_before_any_work(gateway: Gateway, stand_ins: StandIns, kind: str, where: str) -> None:
    (stand_ins.folder / "outside").mkdir()
    (stand_ins.root / "link").symlink_to(stand_ins.folder / "outside")
    for stream in (False, True):
        params = {"workspace": where.format(root=stand_ins.root)}
        reply = ask(gateway, stand_ins, kind, ANSWERS[kind], params=params, stream=stream)
        assert (reply.status, reply.code) == (400, "invalid_request")
        assert reply.json["error"]["param"] == "params.workspace"
        assert str(stand_ins.folder) not in reply.text
    assert gateway.records() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"api_key": "sk-of-a-caller-0123456789"}, "params.api_key"),
        ({"max_turns": 3}, "params.max_turns"),
        ({"timeout": 0}, "params.timeout"),
        ({"timeout": "5"}, "params.timeout"),
        ({"workspace": 5}, "params.workspace"),
    ],
)
def test_other_parameters_and_keys_are_refused(
    gateway: Gateway, stand_ins: StandIns, kind: str, params: Mapping[str, object], param: str
) -> None:
    reply = ask(gateway, stand_ins, kind, ANSWERS[kind], params=params)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.json["error"]["param"] == param
    assert "sk-of-a-caller" not in reply.text
    for place in ({"api_key": "sk-of-a-caller-0123456789"}, {"context": {"api_key": "x"}}):
        assert ask(gateway, stand_ins, kind, ANSWERS[kind], **place).status == 400


def test_a_session_of_claude_code_continues(gateway: Gateway, stand_ins: StandIns) -> None:
    first = ask(gateway, stand_ins, "claude_code", ANSWERS["claude_code"]).json
    session = first["metadata"]["session_id"] + "-000000"
    code = "return [end(String(options.resume))]"
    params = {"session_id": session}
    assert ask(gateway, stand_ins, "claude_code", code, params=params).json["content"] == session
    bad = ask(gateway, stand_ins, "claude_code", code, params={"session_id": "../x"})
    assert (bad.status, bad.json["error"]["param"]) == (400, "params.session_id")


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *[("session_id", text) for text in ("--------", "-c0ffee00", "0a-1", "../../../etc", "0a0a0a0a\n--debug")],
        *[("allowed_tools", [name]) for name in ("--dangerously-skip-permissions", "-p", "", "Read,Bash", "Read\0", " Read")],
    ],
)
def test_arguments_of_claude_code_cannot_be_options(
    gateway: Gateway, stand_ins: StandIns, param: str, value: str | list[str]
) -> None:
    reply = ask(gateway, stand_ins, "claude_code", ANSWERS["claude_code"], params={param: value})
    assert (reply.status, reply.json["error"]["param"]) == (400, f"params.{param}")


@pytest.mark.parametrize("kind", KINDS)
def test_without_harnesses_in_its_file_a_gateway_runs_none(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    del gateway.services.foreign_agents
    for stream in (False, True):
        reply = ask(gateway, stand_ins, kind, ANSWERS[kind], stream=stream)
        assert (reply.status, reply.code) == (503, "kind_unavailable")
        assert "harnesses: {roots: [FOLDER]}" in reply.json["error"]["message"]
    assert gateway.records() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_reads_the_roots_from_its_file(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    config = gateway.services.settings.config
    config.write_text(f"{config.read_text()}\nharnesses: {{roots: [{stand_ins.root}]}}\n")
    del gateway.services.foreign_agents
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stand_ins.environment().items():
            patch.setenv(name, value)
        assert ask(gateway, stand_ins, kind, ANSWERS[kind]).json["content"] == "Done."
        listed = {row["key"]: row for row in gateway.send("GET", "/v1/kinds").json["kinds"]}
        assert (listed[kind]["available"], listed[kind]["reason"]) == (True, None)
        patch.setenv("PATH", str(stand_ins.root))
        patch.setenv("SPASS_OPENHANDS_PYTHON", "/absent")
        versions._answers.clear()
        listed = {row["key"]: row for row in gateway.send("GET", "/v1/kinds").json["kinds"]}
        assert not listed[kind]["available"]
        words = "pip install openhands-sdk" if kind == "openhands" else "nvm install 22"
        assert words in listed[kind]["reason"]
        reply = ask(gateway, stand_ins, kind, ANSWERS[kind])
        assert (reply.status, reply.code) == (503, "kind_unavailable")
        assert words in reply.json["error"]["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_deployed_gateway_runs_none(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    del gateway.services.foreign_agents
    settings = gateway.services.settings
    deployed = Settings.from_environment({"AWS_LAMBDA_FUNCTION_NAME": "ask"}).deployed
    gateway.services.settings = Settings(settings.config, settings.agents, settings.table, settings.bucket, deployed=deployed)
    reply = ask(gateway, stand_ins, kind, ANSWERS[kind])
    assert (reply.status, reply.code) == (503, "kind_unavailable")
    assert "make run" in reply.json["error"]["message"]
    listed = {row["key"]: row for row in gateway.send("GET", "/v1/kinds").json["kinds"]}
    assert (listed[kind]["available"], "make run" in listed[kind]["reason"]) == (False, True)


SLEEP = {
    "openhands": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])",
    "claude_code": """require("node:child_process").spawnSync("sh", ["-c", "sleep 60; : {mark}"])""",
}


@pytest.mark.parametrize("kind", KINDS)
def test_timeout_is_an_upstream_timeout_and_leaves_no_process(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    ask(gateway, stand_ins, kind, ANSWERS[kind])  # which installs what is needed
    mark = uuid4().hex
    reply = ask(gateway, stand_ins, kind, SLEEP[kind].replace("{mark}", mark), params={"timeout": 1})
    assert (reply.status, reply.code) == (504, "upstream_timeout")
    wait_for_processes(mark, 0)
    streamed = ask(gateway, stand_ins, kind, SLEEP[kind].replace("{mark}", mark), params={"timeout": 1}, stream=True)
    assert read_events(streamed)[-1]["error"]["code"] == "upstream_timeout"
    wait_for_processes(mark, 0)
    statuses = [record["status"] for record in gateway.records()]
    assert sorted(statuses) == ["ok", "upstream_timeout", "upstream_timeout"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_deadline_of_the_request_ends_a_run(
    gateway: Gateway, stand_ins: StandIns, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(gateway, stand_ins, kind, ANSWERS[kind])
    monkeypatch.setattr(Deadline, "remaining", lambda _: 1.0)
    mark = uuid4().hex
    reply = ask(gateway, stand_ins, kind, SLEEP[kind].replace("{mark}", mark), params={"timeout": 60})
    assert (reply.status, reply.code) == (504, "upstream_timeout")
    wait_for_processes(mark, 0)


RAISE = {
    "openhands": "raise ValueError({text!r})",
    "claude_code": "throw new Error({text})",
}
SAY = {"openhands": "conversation.say({text!r})", "claude_code": "return [end({text})]"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_is_in_an_error_an_answer_or_the_log(
    gateway: Gateway, stand_ins: StandIns, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def code(template: str, text: str) -> str:
        return template.format(text=text if kind == "openhands" else json.dumps(text))

    for batch in BATCHES[::3]:
        planted = {name: secret for name, secret in batch.items() if name not in BY_VALUE}
        failed = ask(gateway, stand_ins, kind, code(RAISE[kind], text_with_secrets(planted)))
        assert (failed.status, failed.code) == (502, "upstream_error")
        said = ask(gateway, stand_ins, kind, code(SAY[kind], text_with_secrets(planted)))
        assert said.status == 200
        printed = capsys.readouterr()
        assert not leaked_kinds(failed.text + said.text + printed.out + printed.err, planted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_chat_leaves_no_process_and_a_valid_record(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    ask(gateway, stand_ins, kind, ANSWERS[kind])
    write_agent(gateway, "coder", kind=kind, workspace=str(stand_ins.workspace))
    mark, path = uuid4().hex, "/c1/agents/coder/chat"
    text = SLEEP[kind].replace("{mark}", mark)
    chat = gateway.send_async(
        "POST", path, body={"message_id": "m1", "session_id": "s-1", "messages": [{"role": "user", "content": text}]}
    )

    async def stop() -> None:
        await asyncio.to_thread(wait_for_processes, mark, 1, 20)
        stopped = await gateway.send_async("DELETE", f"{path}/m1")
        assert stopped.status in (200, 202), stopped.text
        await asyncio.to_thread(wait_for_processes, mark, 0)

    events = read_events(gateway.send_during(chat, stop()))
    assert (events[-1]["type"], events[-1]["finish_reason"], events[-1]["turns"]) == ("done", "cancelled", 1)
    session = events[-1]["session_id"]
    history = gateway.send("GET", f"/a1/agents/coder/sessions/{session}/messages").json["messages"]
    assert [message["role"] for message in history] == ["user", "assistant"]
    assert sorted(record["status"] for record in gateway.records()) == ["cancelled", "ok"]
