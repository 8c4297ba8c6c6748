"""The tool ``llm`` makes one model call with the rights, the limits and the accounting of its caller."""

import asyncio
import json
from dataclasses import replace
from decimal import Decimal

import pytest

from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import InputRefused, RecursionDepthExceeded
from spass.core.events import ToolProgress
from spass.core.ids import TenantId
from spass.core.messages import FinishReason, Json, Role, TokenUsage, ToolCall
from spass.core.time import Deadline
from spass.models.errors import BackendBadRequest
from spass.models.types import ChatDelta
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.model import ScriptedModel
from spass.tools.chat_models import ChatModels
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolTurn
from tests.unit.calls.scripted_provider import CONFIG, audit_of, calls_of, make_scope, memory_store
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> TenantStore:
    return memory_store(TenantId("acme"))


def toolbox(model: ScriptedModel, config: GatewayConfig = CONFIG) -> Toolbox:
    chat_models = ChatModels(calls_of(model, config), config)
    return toolbox_of(tool_models=chat_models, cascade=Cascade(config))


async def ask(scripted: ScriptedModel, scope: Scope, /, *, by: str | None = None, **arguments: Json) -> ToolOutcome:
    call = ToolCall("call_1", "llm", json.dumps({"prompt": "How many?", **arguments}))
    return await toolbox(scripted).execute(scope, call, allowed=["llm"], turn=ToolTurn(by))


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def error_of(outcome: ToolOutcome) -> tuple[Json, str]:
    assert not outcome.ok
    assert isinstance(outcome.result, dict)
    error = outcome.result["error"]
    assert isinstance(error, dict)
    return error["code"], str(error["message"])


async def test_a_prompt_is_answered_with_a_text(store: TenantStore) -> None:
    model = ScriptedModel("Seven.")
    assert (await ask(model, make_scope(store), system="Be brief.")).result == {"text": "Seven."}
    (request,) = model.requests
    assert [(one.role, one.content) for one in request.messages] == [(Role.SYSTEM, "Be brief."), (Role.USER, "How many?")]
    assert (request.stream, request.tools, request.temperature) == (True, (), None)


@pytest.mark.parametrize("system", ["", " \n"])
async def test_a_blank_system_prompt_is_left_out(store: TenantStore, system: str) -> None:
    model = ScriptedModel("Seven.")
    await ask(model, make_scope(store), system=system)
    assert [message.role for message in model.requests[0].messages] == [Role.USER]


@pytest.mark.parametrize(
    ("allowed", "by", "name", "expected"),
    [
        (["*"], None, None, "small"),
        (["large", "mini-embed"], None, None, "large"),
        (["*"], "large", None, "large"),
        (["small"], "large", None, "small"),
        (["*"], "large", "small", "small"),
        (["*"], "retired", None, "small"),
    ],
)
async def test_the_default_is_the_model_that_calls_or_the_first_that_is_allowed(
    store: TenantStore, allowed: list[str], by: str | None, name: str | None, expected: str
) -> None:
    model = ScriptedModel("Seven.")
    named: dict[str, Json] = {} if name is None else {"model": name}
    assert (await ask(model, make_scope(store, allowed=allowed), by=by, **named)).ok
    assert model.requests[0].model == expected


async def test_the_default_is_a_model_that_a_backend_serves(store: TenantStore) -> None:
    config = CONFIG.model_copy(update={"models": tuple(reversed(CONFIG.models))})  # the first chat model is "unserved"
    model = ScriptedModel("Seven.")
    assert (await toolbox(model, config).execute_direct(make_scope(store), "llm", {"prompt": "x"})).body.result == {
        "text": "Seven."
    }
    assert model.requests[0].model == "unpriced"


@pytest.mark.parametrize(
    ("name", "code", "excerpt"),
    [
        ("large", "model_not_allowed", "may not use the model 'large'"),
        ("gpt-9", "model_not_found", "no model 'gpt-9'"),
        ("mini-embed", "invalid_arguments", "embedding model"),
        ("x" * 128, "model_not_found", "no model 'xxx"),
    ],
)
async def test_a_model_that_cannot_be_used_is_an_error_with_the_names_to_use(
    store: TenantStore, name: str, code: str, excerpt: str
) -> None:
    model = ScriptedModel("Seven.")
    actual, message = error_of(await ask(model, make_scope(store, allowed=["small", "unpriced"]), model=name))
    assert actual == code
    assert excerpt in message
    assert message.endswith("use one of: small, unpriced.")
    assert model.requests == []


async def test_a_token_without_chat_models_is_told_to_answer_without_the_tool(store: TenantStore) -> None:
    model = ScriptedModel("Seven.")
    code, message = error_of(await ask(model, make_scope(store, allowed=["mini-embed"]), by="small"))
    assert (code, model.requests) == ("model_not_allowed", [])
    assert "without this tool" in message


async def test_the_call_is_priced_and_its_parent_is_the_tool_call(store: TenantStore) -> None:
    model = ScriptedModel((ChatDelta("Seven."), ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(1000, 2000))))
    scope = make_scope(store)
    assert (await ask(model, scope)).ok
    records = {record["kind"]: record for record in await audit_of(store)}
    assert set(records) == {"tool", "chat"}
    assert records["chat"]["parent_request_id"] == records["tool"]["request_id"]
    assert (records["tool"]["tool"], records["tool"]["status"]) == ("llm", "ok")
    assert (records["chat"]["model"], records["chat"]["status"]) == ("small", "ok")
    assert scope.tally.total.usd == Decimal("0.0035")
    assert model.contexts[0].headers["SPASS-Caller-Depth"] == "1"


@pytest.mark.parametrize("cut", range(1, 34, 4))
async def test_think_text_is_not_part_of_the_result(store: TenantStore, cut: int) -> None:
    answer = "<think>Six? No.</think>\n\nSeven, <b>I think</b>."
    model = ScriptedModel((ChatDelta(answer[:cut]), ChatDelta(answer[cut:], finish_reason=FinishReason.STOP)))
    assert (await ask(model, make_scope(store))).result == {"text": "Seven, <b>I think</b>."}


async def test_a_model_that_begins_with_thinking_needs_no_opening_tag(store: TenantStore) -> None:
    models = [one.model_copy(update={"begins_thinking": one.name == "small"}) for one in CONFIG.models]
    config = CONFIG.model_copy(update={"models": tuple(models)})
    box = toolbox(ScriptedModel("Six? No.</think>Seven."), config)
    outcome = await box.execute(make_scope(store), ToolCall("c", "llm", '{"prompt": "How many?"}'), allowed=["llm"])
    assert outcome.result == {"text": "Seven."}


async def test_a_text_that_was_cut_off_says_so(store: TenantStore) -> None:
    model = ScriptedModel((ChatDelta("Seven and"), ChatDelta(finish_reason=FinishReason.LENGTH)))
    assert (await ask(model, make_scope(store))).result == {"text": "Seven and", "truncated": True}


@pytest.mark.parametrize(
    ("deltas", "code", "excerpt"),
    [
        ((ChatDelta(refusal="I must not say."),), "model_refused", "I must not say."),
        ((ChatDelta(finish_reason=FinishReason.CONTENT_FILTER),), "model_refused", "blocked"),
        ((ChatDelta("<think>Well.</think>\n"),), "empty_answer", "no text"),
        ((ChatDelta(finish_reason=FinishReason.LENGTH),), "empty_answer", "no text"),
    ],
)
async def test_an_answer_without_text_is_an_error(
    store: TenantStore, deltas: tuple[ChatDelta, ...], code: str, excerpt: str
) -> None:
    actual, message = error_of(await ask(ScriptedModel(deltas), make_scope(store)))
    assert actual == code
    assert excerpt in message


async def test_a_model_that_fails_is_an_error_for_the_model(store: TenantStore) -> None:
    model = ScriptedModel(failure=BackendBadRequest("The prompt is against our rules. See https://internal.example.com/x."))
    code, message = error_of(await ask(model, make_scope(store)))
    assert code == "upstream_rejected"
    assert "internal.example.com" not in message


async def test_a_prompt_that_the_gateway_refuses_is_named_for_http_callers(store: TenantStore) -> None:
    with pytest.raises(InputRefused) as caught:
        await toolbox(ScriptedModel()).execute_direct(make_scope(store), "llm", {"prompt": "\u200b\u200b"})
    assert caught.value.param == "arguments.prompt"


@pytest.mark.parametrize("arguments", [{"prompt": " "}, {"prompt": ""}, {}, {"prompt": "x", "model": ""}, {"prompt": 1}])
async def test_invalid_arguments_call_no_model(store: TenantStore, arguments: dict[str, Json]) -> None:
    model = ScriptedModel()
    outcome = await toolbox(model).execute(make_scope(store), ToolCall("c", "llm", json.dumps(arguments)), allowed=["llm"])
    assert error_of(outcome)[0] == "invalid_arguments"
    assert model.requests == []


async def test_work_that_is_too_deep_makes_no_call(store: TenantStore) -> None:
    model = ScriptedModel()
    scope = make_scope(store, depth=3)
    assert error_of(await ask(model, scope))[0] == "recursion_depth_exceeded"
    with pytest.raises(RecursionDepthExceeded):
        await toolbox(model).execute_direct(scope, "llm", {"prompt": "x"})
    assert model.requests == []


async def test_cancelling_the_call_closes_the_model_and_is_audited(store: TenantStore) -> None:
    model = ScriptedModel(before_chat=wait_for_ever)
    task = asyncio.create_task(ask(model, make_scope(store)))
    while not model.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.closed == 1
    assert {(one["kind"], one["status"]) for one in await audit_of(store)} == {("chat", "cancelled"), ("tool", "cancelled")}


async def test_a_model_that_does_not_answer_before_the_deadline_is_a_timeout(store: TenantStore) -> None:
    model = ScriptedModel(before_chat=wait_for_ever)
    outcome = await ask(model, replace(make_scope(store), deadline=Deadline.after(0.1)))
    assert error_of(outcome)[0] in ("tool_timeout", "upstream_timeout")
    assert model.closed == 1


async def test_the_model_that_is_asked_is_reported_as_progress(store: TenantStore) -> None:
    call = ToolCall("c", "llm", '{"prompt": "How many?"}')
    events = [
        event
        async for event in toolbox(ScriptedModel("7")).run_all(make_scope(store), [call], allowed=["llm"], turn=ToolTurn("large"))
    ]
    assert ToolProgress("c", "Asking large.") in events
