"""Secrets that code computes, that pages contain and that containers and foreign agents print: no answer, stream, record, log,
argument or environment has them."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pytest

from spass.core.code_calls import Sandbox
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.testing.model import in_turn
from tests.functions.gateway import Gateway, Reply
from tests.functions.rlm_turns import SANDBOXES, block
from tests.functions.stored_texts import stored_texts
from tests.functions.test_leaks import planted_gateway, route
from tests.recording_runtime import RecordingRuntime
from tests.sampling import sampled
from tests.stream_grammar import answer_text, read_events
from tests.unit.calls.planted_secrets import BATCHES, SECRETS, leaked_kinds, text_with_secrets
from tests.unit.sandbox.foreign.stand_ins import ANTHROPIC_KEY, LLM_KEY, StandIns
from tests.unit.tools.internet import PUBLIC, Internet

__all__ = ["planted_gateway"]

SANDBOX: Final[Callable[[], Sandbox]] = SANDBOXES[-1]
FILES: Final = {
    "digger": "kind: rlm\ntools: [calculator, llm]\nmax_turns: 3",
    "coder": "kind: native_openhands\ntools: [calculator]",
    "contained": "kind: rlm\ntools: [calculator, llm]\nmax_turns: 3\ncontainer: {}",
}
WAYS: Final = {
    "output": "print(s)",
    "error": "raise ValueError(s)",
    "name": "raise type(s, (Exception,), {{}})()",
    "cut output": "print('x ' * (4_995 - {shift} // 2) + s)",
    "cut error": "raise ValueError('x ' * (1_000 - {shift} // 2) + s)",
    "wrong call": "calculator(expression=s)",
    "sub-call": "print(llm_query(s))",
}
ENDS: Final = {"answer": "FINAL(s)", "answer as JSON": "FINAL({{'a': [s], s[:10_000]: 1}})"}


def program(code: str, text: str, shift: int = 0) -> str:
    """Return a block of code in which ``s`` is ``text``, which the code does not contain."""
    encoded = base64.b85encode(text.encode()).decode()
    return block("import base64", f"s = base64.b85decode({encoded!r}).decode()", code.format(shift=shift))


def share(agent: str, way: str, is_cut: bool) -> Sequence[dict[str, str]]:
    """Return some of the batches, which depend on agent and way. A text that is cut has one secret."""
    batches = [{kind: text} for kind, text in SECRETS.items()] if is_cut else BATCHES
    return sampled(batches, 15 if agent == "contained" else 7, f"{agent} {way}")


def send(gateway: Gateway, agent: str, route: str) -> Reply:
    if route == "chat":
        body = {"message_id": f"m-{len(gateway.model.requests)}", "messages": [{"role": "user", "content": "Go on."}]}
        return gateway.send("POST", f"/c1/agents/{agent}/chat", body=body)
    return gateway.send("POST", "/v1/ask", body={"input": "Go on.", "agent": agent, "stream": route == "stream"})


def assert_clean(reply: Reply, capsys: pytest.CaptureFixture[str], batch: Mapping[str, str]) -> None:
    """Check that the answer and the log have no secret."""
    printed = capsys.readouterr()
    assert not leaked_kinds(reply.text + str(dict(reply.headers)) + printed.out + printed.err, batch)


@pytest.fixture
def coding(planted_gateway: Gateway, runtime: RecordingRuntime) -> Gateway:
    for name, keys in FILES.items():
        (planted_gateway.services.settings.agents / f"{name}.yaml").write_text(f"name: {name}\nmodel: small\n{keys}\n")
    planted_gateway.services.sandbox = SANDBOX()
    route(planted_gateway, lambda _, __: planted_gateway.model)
    return planted_gateway


@pytest.mark.parametrize("way", [*WAYS, *ENDS])
@pytest.mark.parametrize("agent", FILES)
def test_what_code_computes_does_not_leak(
    coding: Gateway, runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str], agent: str, way: str
) -> None:
    code = {**WAYS, **ENDS}[way]
    for number, route_name in enumerate(("ask", "stream", "chat")):
        for batch in share(agent, way, "cut" in way)[number::3]:
            text = text_with_secrets(batch)
            coding.model.script = in_turn([f"So.\n{program(code, text, len(text) // 2 - 10)}", "Done."])
            reply = send(coding, agent, route_name)
            assert reply.status == 200
            assert "code_interpreter" in reply.text
            assert_clean(reply, capsys, batch)
    for stored in stored_texts(coding):
        assert not leaked_kinds(stored, SECRETS)
    environments = json.dumps([(call.arguments, dict(call.environment)) for call in runtime.calls])
    assert not leaked_kinds(environments, SECRETS)
    assert bool(runtime.runs) is (agent == "contained")


@pytest.mark.parametrize("way", ["output", "error"])
def test_what_a_callers_own_code_computes_is_in_no_log(coding: Gateway, capsys: pytest.CaptureFixture[str], way: str) -> None:
    for batch in BATCHES[::3]:
        text = text_with_secrets(batch)
        code = program(WAYS[way], text, len(text) // 2 - 10).removeprefix("```python\n").removesuffix("\n```")
        body = {"name": "code_interpreter", "arguments": {"code": code}}
        reply = coding.send("POST", "/v1/tools/execute", body=body)
        assert reply.status == 200
        printed = capsys.readouterr()
        assert not leaked_kinds(printed.out + printed.err + str(dict(reply.headers)) + str(coding.records()), batch)


@pytest.mark.parametrize("form", ["page", "error", "redirect"])
def test_what_a_page_contains_does_not_leak(coding: Gateway, capsys: pytest.CaptureFixture[str], form: str) -> None:
    for batch in BATCHES[::3]:
        text = text_with_secrets(batch)
        location = {"Location": f"http://127.0.0.1/?{text.splitlines()[0]}"}
        answer = {
            "page": HttpAnswer(text.encode(), content_type="text/plain"),
            "error": HttpAnswer(text.encode(), 500, content_type="text/plain"),
            "redirect": HttpAnswer(b"", 302, headers=location),
        }[form]
        with serve(partial(_same, answer)) as server:
            coding.services.fetcher = Internet({PUBLIC: server}).fetcher
            coding.model.script = in_turn(["Read."])
            body = {
                "message_id": f"m-{len(coding.model.requests)}",
                "messages": [{"role": "user", "content": "See http://a.example/"}],
            }
            reply = coding.send("POST", "/c1/agents/coder/chat", body=body)
        assert answer_text(read_events(reply)) == "Read."
        assert_clean(reply, capsys, batch)
    for stored in stored_texts(coding):
        assert not leaked_kinds(stored, SECRETS)


def test_what_a_failed_container_prints_does_not_leak(
    coding: Gateway, runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, batch in enumerate(BATCHES[::3]):
        runtime.contain(f"import sys\nsys.stderr.write({text_with_secrets(batch)!r})\nsys.exit(1)")
        reply = send(coding, "contained", ("ask", "stream", "chat")[number % 3])
        assert '"error"' in reply.text
        assert_clean(reply, capsys, batch)
    for stored in stored_texts(coding):
        assert not leaked_kinds(stored, SECRETS)


def _same(answer: HttpAnswer, _: HttpRequest) -> HttpAnswer:
    return answer


ENVIRONMENT: Final = {
    "openhands": "import os, sys; open('seen', 'w').write(repr((dict(os.environ), sys.argv, open('/proc/self/environ').read())))",
    "claude_code": """const seen = [process.env, process.argv, options];
require("node:fs").writeFileSync(process.cwd() + "/seen", JSON.stringify(seen))""",
}


@pytest.mark.parametrize("kind", ENVIRONMENT)
def test_a_foreign_agent_has_one_key_and_no_secret_of_the_gateway(gateway: Gateway, stand_ins: StandIns, kind: str) -> None:
    planted = {f"PLANTED_{number}": text for number, text in enumerate(SECRETS.values())}
    gateway.services.foreign_agents = stand_ins.foreign_agents(stand_ins.environment(**planted))
    body = {"input": ENVIRONMENT[kind], "agent": kind, "params": {"workspace": str(stand_ins.workspace)}}
    gateway.send("POST", "/v1/ask", body=body)
    seen = (stand_ins.workspace / "seen").read_text()
    assert not leaked_kinds(seen, SECRETS)
    names = ("LLM_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")
    assert [name in seen for name in names] == [kind == "openhands", kind == "claude_code", False]
    assert (LLM_KEY in seen, ANTHROPIC_KEY in seen) == (kind == "openhands", kind == "claude_code")
    assert not any(secret in seen for secret in ("token-of-the-gateway", "sk-of-the-gateway", "demo-token"))
