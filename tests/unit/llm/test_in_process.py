"""Calls of models by code that runs beside the gateway."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from spass.core.errors import InvalidRequest, NoBackendAvailable, SpassError, UpstreamRejected
from spass.core.ids import TenantId
from spass.llm import complete, embed, reset_usage, usage
from spass.llm.in_process import InProcessCalls
from spass.llm.router import get_router
from spass.llm.usage_log import AgentUsage, TableUsageLog
from spass.metering.usage import UsageQuery
from spass.metering.usage import usage as stored_usage
from spass.models.router import Router
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.yaml_source import ConfigError
from spass.testing.aws import MemoryAws
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from spass.testing.model_server import Completion, serve_model
from tests.unit.llm.in_process_config import folder_with, run

ROOT = Path(__file__).resolve().parents[3]
NOBODY = "http://127.0.0.1:9"
KEY = "sk-planted-1234567890abcdef"
MESSAGES = [{"role": "user", "content": "Hi"}]
CONFIG = """
llm:
  retry_base_delay: 0.01
  retry_max_delay: 0.05
  backends:
    - {{name: one, provider: openai, base_url: "{url}/v1", api_key_env: OPENAI_API_KEY, supported_models: [m, e], {more}}}
models:
  - {{name: m, context_window: 8192, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: e, kind: embedding, dimensions: 8, context_window: 256}}
  - {{name: unserved, context_window: 8192}}
defaults: {{embedding_model: e}}
tenants:
  - {{id: acme}}
"""


def answer(content: str = "Hello.", prompt: int = 10, completion: int = 5) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}], "usage": tokens}


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[None]:
    with (
        serve_model(lambda _: Completion({"content": "Hello."}, usage=answer()["usage"])) as url,
        folder_with(tmp_path, CONFIG.format(url=url, more=""), {"OPENAI_API_KEY": KEY}),
    ):
        yield


def call(agent_id: str | None = None) -> Callable[[], Awaitable[object]]:
    return lambda: complete("m", MESSAGES, agent_id=agent_id)


@pytest.mark.usefixtures("upstream")
def test_embed_returns_one_vector_per_text_and_counts_its_tokens() -> None:
    async def work() -> None:
        reply = await embed("e", ["one", "two", "one"], agent_id="indexer")
        assert [len(vector) for vector in reply.vectors] == [8, 8, 8]
        assert reply.vectors[0] == reply.vectors[2] != reply.vectors[1]
        assert reply.usage == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
        assert usage("indexer") == AgentUsage(1, 3, 0)
        assert (await embed("e", [])).vectors == []

    run(work)


@pytest.mark.usefixtures("upstream")
def test_usage_is_counted_by_agent_until_it_is_reset() -> None:
    async def work() -> None:
        for agent in ("a", "a", "b", None):
            await call(agent)()
        assert (usage("a"), usage("b"), usage("c")) == (AgentUsage(2, 20, 10), AgentUsage(1, 10, 5), AgentUsage())
        reset_usage("a")
        assert (usage("a").total_tokens, usage("b").total_tokens) == (0, 15)
        reset_usage()
        assert usage("b") == AgentUsage()

    run(work)


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("model", ["unserved", "nonsense", ""])
def test_a_model_without_a_backend_raises_no_backend_available(model: str) -> None:
    with pytest.raises(NoBackendAvailable):
        run(lambda: complete(model, MESSAGES))
    with pytest.raises(NoBackendAvailable if model != "" else SpassError):
        run(lambda: embed(model if model != "unserved" else "nonsense", ["a"]))


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        ({"role": "user", "content": "Hi"}, "messages"),
        (["Hi"], "messages.0"),
        ([{"role": "user", "content": "Hi"}, {"role": "robot", "content": "Hi"}], "messages.1.role"),
        ([{"role": "tool", "content": "Hi"}], "messages.0.tool_call_id"),
        ([{"content": "Hi"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": ["Hi"]}], "messages.0.content"),
        ([{"role": "user", "content": "Hi", "name": "ada"}], "messages.0"),
    ],
)
def test_messages_that_are_none_are_refused_with_their_place(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        run(lambda: complete("m", messages))
    assert refused.value.param == param
    assert refused.value.message.startswith(param)


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: complete("e", MESSAGES), "Call embed"),
        (lambda: embed("m", ["a"]), "Call complete"),
        (lambda: embed("e", "a text"), "list of texts"),
        (lambda: embed("e", ["a", ""]), "empty"),
        (call("two words"), "agent_id"),
        (call("a#b"), "agent_id"),
        (call(""), "agent_id"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_sent(work: Callable[[], Awaitable[object]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run(work)


def test_raw_is_the_answer_of_the_attempt_that_succeeded(tmp_path: Path) -> None:
    answers = [HttpAnswer(b'{"choices": []}'), json_answer({}, 500), json_answer({**answer("Third."), "number": 3})]
    with (
        serve(lambda _: answers.pop(0)) as url,
        folder_with(tmp_path, CONFIG.format(url=url, more=""), {"OPENAI_API_KEY": KEY}),
    ):
        reply = run(lambda: complete("m", MESSAGES))
    assert (reply.content, reply.raw["number"], reply.model) == ("Third.", 3, "m")
    assert answers == []


def test_an_error_does_not_show_the_key_or_the_address(tmp_path: Path) -> None:
    def refuse(request: HttpRequest) -> HttpAnswer:
        message = f"Bad key {request.headers['Authorization']} at {request.headers['Host']}"
        return json_answer({"error": {"message": message}}, 400)

    with (
        serve(refuse) as url,
        folder_with(tmp_path, CONFIG.format(url=url, more=""), {"OPENAI_API_KEY": KEY}),
        pytest.raises(UpstreamRejected) as refused,
    ):
        run(lambda: complete("m", MESSAGES))
    assert "Bad key" in refused.value.message
    assert KEY not in refused.value.message
    assert "127.0.0.1" not in refused.value.message


def test_the_limits_of_a_backend_hold_within_the_process(tmp_path: Path) -> None:
    running: list[int] = []
    active, lock = 0, threading.Lock()

    def respond(_: HttpRequest) -> HttpAnswer:
        nonlocal active
        with lock:
            active += 1
            running.append(active)
        time.sleep(0.05)
        with lock:
            active -= 1
        return json_answer(answer())

    async def work() -> None:
        await asyncio.gather(*(complete("m", MESSAGES) for _ in range(6)))

    with serve(respond) as url, folder_with(tmp_path, CONFIG.format(url=url, more="max_concurrent: 2"), {"OPENAI_API_KEY": KEY}):
        run(work)
    assert len(running) == 6
    assert max(running) <= 2


def test_a_full_minute_of_tokens_refuses_the_call(tmp_path: Path) -> None:
    with (
        serve(lambda _: json_answer(answer())) as url,
        folder_with(tmp_path, CONFIG.format(url=url, more="rate_limit_tpm: 20"), {"OPENAI_API_KEY": KEY}),
    ):

        async def work() -> None:
            assert (await complete("m", MESSAGES, max_tokens=5)).content == "Hello."
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):  # the call waits for the next minute, as a request of the gateway does
                    await complete("m", MESSAGES, max_tokens=15)

        run(work)


@pytest.mark.usefixtures("upstream")
def test_each_event_loop_of_the_process_can_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the end of a loop leaves its idle connections open
        for _ in range(2):
            asyncio.run(complete("m", MESSAGES, agent_id="loops"))
        assert usage("loops").request_count == 2
        run(call())
        gc.collect()


def test_a_cancelled_call_is_counted_if_it_may_be_billed(tmp_path: Path) -> None:
    arrived = threading.Event()

    def hang(request: HttpRequest) -> None:
        arrived.set()
        request.wait_for_disconnect(10)

    async def work() -> None:
        task = asyncio.create_task(cast("Any", complete("m", MESSAGES, agent_id="a", max_tokens=7)))
        assert await asyncio.to_thread(arrived.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert usage("a") == AgentUsage(1, 1, 7)

    with serve(hang) as url, folder_with(tmp_path, CONFIG.format(url=url, more=""), {"OPENAI_API_KEY": KEY}):
        run(work)


@pytest.fixture
def aws() -> MemoryAws:
    return MemoryAws()


@pytest.fixture
def store(aws: MemoryAws) -> TenantStore:
    return aws.for_tenant(TenantId("acme"))


def test_with_a_table_usage_and_audit_are_the_tenants(tmp_path: Path, aws: MemoryAws, store: TenantStore) -> None:
    with (
        serve(lambda _: json_answer(answer())) as url,
        folder_with(tmp_path, CONFIG.format(url=url, more="")),
    ):
        config: GatewayConfig = load_gateway_config(tmp_path / "gateway.yaml")
        router = Router(config.llm, config.models, lambda _: KEY)
        calls = InProcessCalls(config, router, TableUsageLog(store, aws.close))

        async def work() -> None:
            for _ in range(2):
                await calls.complete("m", MESSAGES, agent_id="researcher")
            with pytest.raises(NoBackendAvailable):
                await calls.complete("unserved", MESSAGES, agent_id="researcher")
            report = await stored_usage(store, UsageQuery())
            assert [(group.key, group.requests, group.cost_usd) for group in report.usage] == [("researcher", 2, "0.00004")]
            # The reports also work while an event loop runs, as in a notebook.
            assert calls.get_agent_usage("researcher") == AgentUsage(2, 20, 10)
            assert calls.get_all_usage() == {"researcher": AgentUsage(2, 20, 10)}
            calls.reset_agent_usage("other")
            assert calls.get_agent_usage("researcher").request_count == 2
            calls.reset_agent_usage("researcher")
            assert calls.get_agent_usage("researcher") == AgentUsage()
            await calls.aclose()

        asyncio.run(work())


def test_a_reported_price_of_0_without_tokens_is_replaced_by_that_of_the_catalogue(
    tmp_path: Path, aws: MemoryAws, store: TenantStore
) -> None:
    free = {key: value for key, value in answer().items() if key != "usage"} | {"usage": {"cost": 0}}
    with serve(lambda _: json_answer(free)) as url, folder_with(tmp_path, CONFIG.format(url=url, more="")):
        config: GatewayConfig = load_gateway_config(tmp_path / "gateway.yaml")
        calls = InProcessCalls(config, Router(config.llm, config.models, lambda _: KEY), TableUsageLog(store, aws.close))

        async def work() -> None:
            await calls.complete("m", MESSAGES, agent_id="researcher")
            (group,) = (await stored_usage(store, UsageQuery())).usage
            expected = Decimal(group.prompt_tokens + 2 * group.completion_tokens) / 10**6
            assert Decimal(group.cost_usd) == expected > 0
            await calls.aclose()

        asyncio.run(work())


@pytest.fixture
def with_table(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the variables of a deployment with a table, and the tenant to charge."""

    def set_variables(tenant: str) -> None:
        for name, value in (("SPASS_TABLE", "table"), ("SPASS_TENANT", tenant), ("AWS_DEFAULT_REGION", "eu-central-1")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    return set_variables


@pytest.mark.parametrize(
    ("tenants", "name", "message"),
    [("[{id: a}, {id: b}]", "", "is not set"), ("[{id: a}, {id: b}]", "c", "is 'c'"), ("[]", "", "one of none")],
)
def test_with_a_table_an_unknown_tenant_to_charge_is_refused(
    tmp_path: Path, with_table: Callable[[str], None], tenants: str, name: str, message: str
) -> None:
    with folder_with(tmp_path, CONFIG.format(url=NOBODY, more="").partition("tenants:")[0] + f"tenants: {tenants}\n"):
        with_table(name)
        with pytest.raises(InvalidRequest, match=message):
            get_router()


@pytest.mark.parametrize(("tenants", "name"), [("[{id: a}, {id: b}]", "b"), ("[{id: a}]", "")])
def test_with_a_table_the_tenant_is_named_or_the_only_one(
    tmp_path: Path, with_table: Callable[[str], None], tenants: str, name: str
) -> None:
    with folder_with(tmp_path, CONFIG.format(url=NOBODY, more="").partition("tenants:")[0] + f"tenants: {tenants}\n"):
        with_table(name)
        assert get_router() is get_router()


def test_log_lines_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with folder_with(tmp_path, CONFIG.format(url=NOBODY, more="")), pytest.raises(NoBackendAvailable):
        run(call())
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["set"]) == ("", ["OPENAI_API_KEY"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with folder_with(tmp_path, CONFIG):
        (tmp_path / "gateway.yaml").unlink()
        with pytest.raises(ConfigError, match="SPASS_CONFIG"):
            run(lambda: complete("m", MESSAGES))


def test_importing_the_package_imports_neither_the_calls_nor_an_aws_client() -> None:
    code = "import spass.llm, sys; print([name for name in ('spass.calls', 'boto3', 'httpx', 'yaml') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "shared", capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
