"""The gateway's own tools in a chat: the model uses them on its way, and the caller gets one answer."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spass.agents.kinds.server_tools import ServerToolsAgent
from spass.agents.render.chunks import replay_chunks
from spass.calls.datamark import remove_marks
from spass.calls.scope import Scope
from spass.completions.augment import Augment
from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.messages import check_tool_answers
from spass.completions.service import Completions
from spass.core.errors import StorageUnavailable, UpstreamError
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCallDelta
from spass.models.errors import BackendUnavailable
from spass.models.types import CallContext, ChatDelta, ChatRequest, NamedTool
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.model import Deltas, ScriptedModel
from spass.tools.toolbox import Toolbox
from tests.unit.calls.scripted_provider import CONFIG, audit_of, calls_of, make_scope
from tests.unit.completions.chunk_collector import collect_chunks, read_chunks
from tests.unit.completions.no_services import no_agents
from tests.unit.tools.fakes import FakeReader, rag_with, scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio

WITH_TOOLS = GatewayConfig.model_validate(
    CONFIG.model_dump() | {"defaults": {"embedding_model": "mini-embed", "tools_enabled_default": ["calculator", "rag_query"]}}
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


class Model(ScriptedModel):
    """Answers with ``turns`` in order, then repeats the last one. An exception among the deltas is raised."""

    def __init__(self, turns: Sequence[Sequence[ChatDelta | Exception]] = ()) -> None:
        super().__init__(self._turn)
        self.turns = turns

    def _turn(self, _: ChatRequest, __: CallContext) -> Deltas:
        return [*self.turns[min(len(self.requests), len(self.turns)) - 1], ChatDelta(usage=TokenUsage(10, 5))]

    def completions(self, config: GatewayConfig = WITH_TOOLS) -> Completions:
        return Completions(
            calls_of(self, config), config, Cascade(config), lambda: toolbox_of(cascade=Cascade(config)), no_agents
        )


def says(text: str) -> list[ChatDelta]:
    middle = len(text) // 2
    return [ChatDelta(text[:middle]), ChatDelta(text[middle:], finish_reason=FinishReason.STOP)]


def calling(*names: str, arguments: str = '{"expression": "6*7"}', text: str = "") -> list[ChatDelta]:
    """Return an answer that calls the tools ``names``, each call in three pieces."""
    deltas = [ChatDelta(text)] if text else []
    for index, name in enumerate(names):
        pieces = (
            ToolCallDelta(index, f"call_{name}_{index}", name),
            ToolCallDelta(index, arguments=arguments[:5]),
            ToolCallDelta(index, arguments=arguments[5:]),
        )
        deltas += [ChatDelta(tool_calls=(piece,)) for piece in pieces]
    return [*deltas, ChatDelta(finish_reason=FinishReason.TOOL_CALLS)]


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "small", "messages": [{"role": "user", "content": "6 * 7?"}], **fields})


async def complete_and_stream(model: Model, scope: Scope, config: GatewayConfig = WITH_TOOLS, **fields: Any) -> dict[str, Any]:
    """Return the blocking answer. Check that the collected stream and its replay are the same."""
    blocking = await model.completions(config).complete(scope, chat(**fields))
    again = Model(turns=model.turns).completions(config).stream(make_scope(scope.store), chat(stream=True, **fields))
    streamed = collect_chunks(read_chunks([frame async for frame in again]))
    assert without_id_and_time(
        collect_chunks(replay_chunks(streamed.to_dict(), include_usage=True)).to_dict()
    ) == without_id_and_time(streamed.to_dict())
    assert without_id_and_time(streamed.to_dict()) == without_id_and_time(blocking.to_dict())
    return blocking.to_dict()


def without_id_and_time(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


def message_of(answer: dict[str, Any]) -> Any:
    choices: Any = answer["choices"]
    return choices[0]["message"]


def reason_of(answer: dict[str, Any]) -> Any:
    choices: Any = answer["choices"]
    return choices[0]["finish_reason"]


def names_offered(request: ChatRequest) -> list[str]:
    return [tool.name for tool in request.tools]


async def test_a_server_tool_is_run_and_the_model_reads_its_result(store: TenantStore) -> None:
    model, scope = Model(turns=[calling("calculator"), says("It is 42.")]), make_scope(store)
    answer = (await model.completions().complete(scope, chat())).to_dict()
    assert message_of(answer) == {"role": "assistant", "content": "It is 42.", "refusal": None}
    assert reason_of(answer) == "stop"
    first, second = model.requests
    assert names_offered(first) == names_offered(second) == ["calculator", "rag_query"]
    *_, answer_message, result = second.messages
    assert [call.name for call in answer_message.tool_calls] == ["calculator"]
    assert (result.role, result.tool_call_id) == (Role.TOOL, answer_message.tool_calls[0].id)
    assert json.loads(remove_marks(result.content)) == {"expression": "6*7", "result": 42}


async def test_usage_and_cost_cover_all_calls_and_each_call_leaves_a_record(store: TenantStore) -> None:
    model, scope = Model(turns=[calling("calculator", "calculator"), says("It is 42.")]), make_scope(store)
    answer = (await model.completions().complete(scope, chat())).to_dict()
    assert answer["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "total_tokens": 30,
        "cost": 0.000025,
        "cost_details": {"eur": "0.00002250", "usd": "0.0000250", "source": "catalog", "sub_calls": 2},
    }
    kinds = [(record["kind"], record["parent_request_id"]) for record in await audit_of(store)]
    assert sorted(kinds) == [("chat", "req_outer")] * 2 + [("tool", "req_outer")] * 2


async def test_a_call_of_a_callers_tool_is_returned_to_the_caller(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator"), calling("weather", arguments='{"city": "Bonn"}', text="Let me look.")])
    answer = await complete_and_stream(model, make_scope(store), tools=[WEATHER])
    assert names_offered(model.requests[0]) == ["weather", "calculator", "rag_query"]
    function = {"name": "weather", "arguments": '{"city": "Bonn"}'}
    assert message_of(answer)["tool_calls"] == [{"id": "call_weather_0", "type": "function", "function": function}]
    assert (message_of(answer)["content"], reason_of(answer)) == ("Let me look.", "tool_calls")


async def test_a_mixed_answer_returns_the_callers_calls_and_runs_none(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", "weather", "rag_query", "weather")])
    answer = await complete_and_stream(model, make_scope(store), tools=[WEATHER])
    calls = message_of(answer)["tool_calls"]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [
        ("call_weather_1", "weather"),
        ("call_weather_3", "weather"),
    ]
    assert len(model.requests) == 1
    assert {record["kind"] for record in await audit_of(store)} == {"chat"}


async def test_the_caller_may_continue_the_conversation_from_the_answer(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", "weather"), calling("calculator"), says("Sunny, and 42.")])
    service, scope = model.completions(), make_scope(store)
    first = message_of((await service.complete(scope, chat(tools=[WEATHER]))).to_dict())
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in first["tool_calls"]]
    messages = [{"role": "user", "content": "6 * 7?"}, first, *results]
    answer = (await service.complete(scope, chat(messages=messages, tools=[WEATHER]))).to_dict()
    assert message_of(answer)["content"] == "Sunny, and 42."


async def test_calls_of_the_callers_tools_and_of_server_tools_may_alternate(store: TenantStore) -> None:
    model = Model(turns=[calling("weather"), calling("calculator"), calling("weather", "weather"), says("Sunny, and 42.")])
    service, scope = model.completions(), make_scope(store)
    messages: list[Any] = [{"role": "user", "content": "6 * 7?"}]
    for answers in (1, 2, 0):
        answer = message_of((await service.complete(scope, chat(messages=messages, tools=[WEATHER]))).to_dict())
        calls = answer.get("tool_calls", [])
        assert [call["function"]["name"] for call in calls] == ["weather"] * answers
        results = [{"role": "tool", "tool_call_id": call["id"], "content": f"sunny {call['id']}"} for call in calls]
        messages += [answer, *results]
    assert messages[-1]["content"] == "Sunny, and 42."
    shapes = [[(message.role.value, len(message.tool_calls)) for message in request.messages] for request in model.requests]
    question, call = [("user", 0)], [("assistant", 1), ("tool", 0)]
    assert [_without_system_messages(shape) for shape in shapes] == [
        question,
        [*question, *call],
        [*question, *call, *call],  # the call of the server tool is in this request only
        [*question, *call, ("assistant", 2), ("tool", 0), ("tool", 0)],
    ]
    read = [remove_marks(message.content) for message in model.requests[-1].messages if message.role is Role.TOOL]
    assert read == ["sunny call_weather_0", "sunny call_weather_0", "sunny call_weather_1"]
    assert {tuple(names_offered(request)) for request in model.requests} == {("weather", "calculator", "rag_query")}


def _without_system_messages(shape: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Leave out the message of the prompt defence."""
    return [entry for entry in shape if entry[0] != "system"]


async def test_a_past_call_of_a_callers_tool_does_not_hide_the_server_tool(store: TenantStore) -> None:
    mine = {"type": "function", "function": {"name": "calculator", "description": "Mine."}}
    model = Model(turns=[calling("calculator"), calling("calculator"), says("42")])
    service, scope = model.completions(), make_scope(store)
    messages: list[Any] = [{"role": "user", "content": "6 * 7?"}]
    first = message_of((await service.complete(scope, chat(messages=messages, tools=[mine]))).to_dict())
    messages += [first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "about 40"}]
    answer = (await service.complete(scope, chat(messages=messages))).to_dict()
    assert message_of(answer)["content"] == "42"
    results = [remove_marks(message.content) for message in model.requests[-1].messages if message.role is Role.TOOL]
    assert (results[0], json.loads(results[1])["result"]) == ("about 40", 42)


async def test_streamed_calls_are_numbered_from_0_and_begin_with_their_name(store: TenantStore) -> None:
    late = [
        ChatDelta(tool_calls=(ToolCallDelta(0, "call_a", "calculator", "{}"), ToolCallDelta(1, "call_b", None, '{"a"'))),
        ChatDelta(tool_calls=(ToolCallDelta(1, None, "weather", ":"),)),
        ChatDelta(tool_calls=(ToolCallDelta(1, arguments="1}"),), finish_reason=FinishReason.TOOL_CALLS),
    ]
    stream = Model(turns=[late]).completions().stream(make_scope(store), chat(stream=True, tools=[WEATHER]))
    chunks = read_chunks([frame async for frame in stream])
    pieces = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert {piece["index"] for piece in pieces} == {0}
    assert (pieces[0]["id"], pieces[0]["function"]["name"]) == ("call_b", "weather")
    assert [piece for piece in pieces[1:] if "id" in piece or "name" in piece["function"]] == []
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a":1}'


async def test_a_callers_tool_replaces_the_server_tool_of_the_same_name(store: TenantStore) -> None:
    mine = {"type": "function", "function": {"name": "calculator", "description": "Mine."}}
    model = Model(turns=[calling("calculator")])
    answer = await complete_and_stream(model, make_scope(store), tools=[mine])
    assert [(tool.name, tool.description == "Mine.") for tool in model.requests[0].tools] == [
        ("calculator", True),
        ("rag_query", False),
    ]
    assert message_of(answer)["tool_calls"][0]["function"]["name"] == "calculator"


@pytest.mark.parametrize(
    "choice", ["none", "required", {"type": "function", "function": {"name": "weather"}}], ids=["none", "required", "named"]
)
async def test_with_a_tool_choice_only_the_callers_tools_are_offered(store: TenantStore, choice: object) -> None:
    model = Model(turns=[calling("weather")])
    await complete_and_stream(model, make_scope(store), tools=[WEATHER], tool_choice=choice)
    (request,) = model.requests
    assert names_offered(request) == ["weather"]
    assert request.tool_choice == (choice if isinstance(choice, str) else NamedTool("weather"))


async def test_tool_choice_none_without_tools_offers_no_tool(store: TenantStore) -> None:
    model = Model(turns=[says("Hello.")])
    await complete_and_stream(model, make_scope(store), tool_choice="none")
    assert model.requests[0].tools == ()


async def test_the_other_parameters_are_sent_with_every_model_call(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator"), says("42")])
    fields = {"temperature": 0.5, "seed": 7, "stop": ["END"], "parallel_tool_calls": False, "max_completion_tokens": 50}
    await model.completions().complete(make_scope(store), chat(**fields, tool_choice="auto", tools=[WEATHER]))
    for request in model.requests:
        assert (request.temperature, request.seed, request.stop, request.max_tokens) == (0.5, 7, ("END",), 50)
        assert (request.extra, request.tool_choice) == ({"parallel_tool_calls": False}, "auto")


async def test_the_answer_is_the_texts_of_all_model_calls_in_order(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", text="Let me see."), calling("calculator"), says("It is 42.")])
    assert message_of(await complete_and_stream(model, make_scope(store)))["content"] == "Let me see.\n\nIt is 42."


async def test_text_is_streamed_before_the_tools_run(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", text="Let me see."), says("It is 42.")])
    choices: list[Any] = []
    request_counts = []
    async for frame in model.completions().stream(make_scope(store), chat(stream=True)):
        choices += [choice for chunk in read_chunks([frame]) for choice in chunk["choices"]]
        if choices[-1]["delta"].get("content"):
            request_counts.append(len(model.requests))
    assert sorted(set(request_counts)) == [1, 2]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert sum("role" in choice["delta"] for choice in choices) == 1


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_a_json_answer_is_the_text_of_the_last_call_only(store: TenantStore, kind: str) -> None:
    wanted: dict[str, Any] = {"type": kind} | ({"json_schema": {"name": "it"}} if kind == "json_schema" else {})
    model = Model(turns=[calling("calculator", text="Let me see."), says('{"it": 42}')])
    answer = await complete_and_stream(model, make_scope(store), response_format=wanted)
    assert json.loads(message_of(answer)["content"]) == {"it": 42}
    assert [request.response_format and request.response_format["type"] for request in model.requests] == [kind, kind]


async def test_a_call_of_an_unknown_tool_gets_an_error_from_the_gateway(store: TenantStore) -> None:
    model = Model(turns=[calling("launch.rockets"), says("I cannot.")])
    answer = await complete_and_stream(model, make_scope(store), tools=[WEATHER])
    assert message_of(answer)["content"] == "I cannot."
    *_, call, result = model.requests[1].messages
    assert call.tool_calls[0].name == "launch_rockets"  # every provider accepts this name
    assert json.loads(remove_marks(result.content))["error"]["code"] == "tool_not_found"


async def test_a_tool_outside_the_tenants_list_is_unknown(store: TenantStore) -> None:
    model = Model(turns=[calling("current_datetime", arguments="{}"), says("No idea.")])
    await model.completions().complete(make_scope(store), chat())
    assert json.loads(remove_marks(model.requests[1].messages[-1].content))["error"]["code"] == "tool_not_found"


async def test_a_model_can_correct_an_invalid_call(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", arguments='{"formula": 1'), calling("calculator"), says("42")])
    assert message_of(await complete_and_stream(model, make_scope(store)))["content"] == "42"
    assert json.loads(remove_marks(model.requests[1].messages[-1].content))["error"]["code"] == "invalid_arguments"


async def test_a_tool_call_in_the_last_model_call_ends_with_reason_length(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", text="Once more.")])
    answer = await complete_and_stream(model, make_scope(store))
    assert len(model.requests) == ServerToolsAgent.max_turns
    assert [request.tool_choice for request in model.requests] == [None] * (ServerToolsAgent.max_turns - 1) + ["none"]
    assert {tuple(names_offered(request)) for request in model.requests} == {("calculator", "rag_query")}
    assert (reason_of(answer), "tool_calls" in message_of(answer)) == ("length", False)
    usage: Any = answer["usage"]
    assert usage["cost_details"]["sub_calls"] == ServerToolsAgent.max_turns


async def test_json_written_beside_a_last_tool_call_is_the_answer(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator", text='{"it": 42}')])
    answer = await complete_and_stream(model, make_scope(store), response_format={"type": "json_object"})
    assert (reason_of(answer), message_of(answer)["content"]) == ("length", '{"it": 42}')


async def test_the_provider_is_asked_to_stream_also_for_a_blocking_client(store: TenantStore) -> None:
    model = Model(turns=[calling("calculator"), says("It is 42.")])
    await complete_and_stream(model, make_scope(store))
    assert [request.stream for request in model.requests] == [True, True]
    plain = Model(turns=[says("Hello.")])
    await complete_and_stream(plain, make_scope(store), CONFIG)
    assert [request.stream for request in plain.requests] == [False]


async def test_a_truncated_call_of_a_callers_tool_is_returned(store: TenantStore) -> None:
    cut = [*calling("weather", arguments='{"ci')[:-1], ChatDelta(finish_reason=FinishReason.LENGTH)]
    answer = await complete_and_stream(Model(turns=[cut]), make_scope(store), tools=[WEATHER])
    assert reason_of(answer) == "length"
    assert message_of(answer)["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"ci'}


async def test_a_truncated_tool_call_is_not_run(store: TenantStore) -> None:
    cut = [*calling("calculator", arguments='{"expr', text="So")[:-1], ChatDelta(finish_reason=FinishReason.LENGTH)]
    model = Model(turns=[cut])
    answer = await complete_and_stream(model, make_scope(store))
    assert (len(model.requests), reason_of(answer), message_of(answer)["content"]) == (1, "length", "So")
    assert "tool_calls" not in message_of(answer)


async def test_reason_tool_calls_without_calls_becomes_stop(store: TenantStore) -> None:
    empty = [ChatDelta("Done."), ChatDelta(finish_reason=FinishReason.TOOL_CALLS)]
    assert reason_of(await complete_and_stream(Model(turns=[calling("calculator"), empty]), make_scope(store))) == "stop"
    assert reason_of(await complete_and_stream(Model(turns=[empty]), make_scope(store), CONFIG, tools=[WEATHER])) == "stop"
    assert [record.get("finish_reason") for record in await audit_of(store)].count("tool_calls") == 2  # the calculator's


async def test_calls_beyond_32_of_one_answer_get_an_error(store: TenantStore) -> None:
    model = Model(turns=[calling(*["calculator"] * 40), says("42, mostly.")])
    answer = (await model.completions().complete(make_scope(store), chat())).to_dict()
    assert message_of(answer)["content"] == "42, mostly."
    results = [json.loads(remove_marks(message.content)) for message in model.requests[1].messages if message.role is Role.TOOL]
    assert [result.get("error", {}).get("code") for result in results] == [None] * 32 + ["too_many_tool_calls"] * 8


@pytest.mark.parametrize(("own", "room"), [(125, 2), (127, 1), (128, 0)])
async def test_at_most_128_tools_are_offered_the_callers_first(store: TenantStore, own: int, room: int) -> None:
    mine = [{"type": "function", "function": {"name": f"mine_{number}"}} for number in range(own)]
    model = Model(turns=[says("Hello.")])
    await complete_and_stream(model, make_scope(store), tools=mine)
    named = names_offered(model.requests[0])
    assert named == [*(f"mine_{number}" for number in range(own)), *["calculator", "rag_query"][:room]]


async def test_a_tool_beyond_the_128_offered_is_unknown(store: TenantStore) -> None:
    mine = [{"type": "function", "function": {"name": f"mine_{number}"}} for number in range(127)]
    model = Model(turns=[calling("rag_query"), says("No idea.")])
    await model.completions().complete(make_scope(store), chat(tools=mine))
    assert json.loads(remove_marks(model.requests[1].messages[-1].content))["error"]["code"] == "tool_not_found"


async def test_the_augment_header_can_turn_server_tools_off(store: TenantStore) -> None:
    model, off = Model(turns=[says("Hello.")]), Augment(server_tools=False)
    await model.completions().complete(make_scope(store), chat(), off)
    assert [chunk async for chunk in model.completions().stream(make_scope(store), chat(stream=True), off)]
    assert [request.tools for request in model.requests] == [(), ()]


async def test_a_tenants_list_replaces_the_default_list(store: TenantStore) -> None:
    tenant = {"id": "acme", "defaults": {"tools_enabled_default": ["current_datetime", "current_datetime"]}}
    config = GatewayConfig.model_validate(WITH_TOOLS.model_dump() | {"tenants": [tenant, {"id": "other", "defaults": {}}]})
    model = Model(turns=[says("Hello.")])
    await model.completions(config).complete(make_scope(store), chat())
    assert names_offered(model.requests[0]) == ["current_datetime"]


async def test_without_server_tools_no_toolbox_is_created(store: TenantStore) -> None:
    def fail() -> Toolbox:
        raise AssertionError("no tenant has tools")

    model = Model(turns=[says("Hello.")])
    service = Completions(calls_of(model), CONFIG, Cascade(CONFIG), fail, no_agents)
    service.prepare()
    await service.complete(make_scope(store), chat(tools=[WEATHER]))
    assert model.requests == [replace(chat(tools=[WEATHER]).chat_request(), context_window=1000)]


def test_prepare_creates_the_toolbox_if_any_tenant_has_server_tools() -> None:
    toolboxes = []

    def create() -> Toolbox:
        toolboxes.append(True)
        return toolbox_of(cascade=Cascade(CONFIG))

    tenant = {"id": "acme", "defaults": {"tools_enabled_default": ["calculator"]}}
    config = GatewayConfig.model_validate(CONFIG.model_dump() | {"tenants": [tenant]})
    Completions(calls_of(Model(), config), config, Cascade(config), create, no_agents).prepare()
    assert toolboxes == [True]


async def test_a_server_tool_acts_for_the_callers_tenant() -> None:
    scope = scope_for("demo")
    reader = FakeReader({("demo", "notes"): ["Bonn is a town."]})
    model = Model(turns=[calling("rag_query", arguments='{"index_id": "notes", "query": "Bonn?"}'), says("A town.")])
    await Completions(
        calls_of(model, WITH_TOOLS),
        WITH_TOOLS,
        Cascade(WITH_TOOLS),
        lambda: toolbox_of(rag=rag_with(reader), cascade=Cascade(WITH_TOOLS)),
        no_agents,
    ).complete(scope, chat())
    assert reader.queries == [("demo", "notes", "Bonn?", 5)]
    assert table_of(scope).audited("tool") == [("rag_query", "ok")]


async def test_a_failed_second_model_call_fails_the_request_and_the_first_is_billed(store: TenantStore) -> None:
    scope = make_scope(store)
    with pytest.raises(UpstreamError):
        await Model(turns=[calling("calculator"), [BackendUnavailable("down")]]).completions().complete(scope, chat())
    assert scope.tally.total.sub_calls == 1


async def test_unavailable_storage_in_a_tool_fails_the_request() -> None:
    class Broken(FakeReader):
        async def query(self, *_: object, **__: object) -> Any:
            raise StorageUnavailable("The storage did not answer in time; try again.")

    model = Model(turns=[calling("rag_query", arguments='{"index_id": "notes", "query": "x"}'), says("Hm.")])
    with pytest.raises(StorageUnavailable):
        await Completions(
            calls_of(model, WITH_TOOLS),
            WITH_TOOLS,
            Cascade(WITH_TOOLS),
            lambda: toolbox_of(rag=rag_with(Broken()), cascade=Cascade(WITH_TOOLS)),
            no_agents,
        ).complete(scope_for(), chat())
    assert len(model.requests) == 1


async def test_a_cancelled_request_cancels_its_running_tools(store: TenantStore) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    class Slow(FakeReader):
        async def query(self, *_: object, **__: object) -> Any:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    model = Model(turns=[calling("rag_query", arguments='{"index_id": "notes", "query": "x"}'), says("Hm.")])
    service = Completions(
        calls_of(model, WITH_TOOLS),
        WITH_TOOLS,
        Cascade(WITH_TOOLS),
        lambda: toolbox_of(rag=rag_with(Slow()), cascade=Cascade(WITH_TOOLS)),
        no_agents,
    )
    task = asyncio.create_task(service.complete(make_scope(store), chat()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert {(record["kind"], record["status"]) for record in await audit_of(store)} == {("chat", "ok"), ("tool", "cancelled")}


NAMES = st.sampled_from(["calculator", "rag_query", "weather", "map", "nonsense"])
TURN = st.tuples(
    st.lists(st.text("ab ", max_size=3), max_size=3), st.lists(NAMES, max_size=4), st.sampled_from([None, *FinishReason])
)


def turn_of(texts: Sequence[str], names: Sequence[str], reason: FinishReason | None) -> list[ChatDelta]:
    deltas = [*map(ChatDelta, texts), *calling(*names)[:-1]]
    natural = FinishReason.TOOL_CALLS if names else FinishReason.STOP
    return [*deltas, ChatDelta(finish_reason=natural if reason in (None, FinishReason.MAX_TURNS) else reason)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(turns=st.lists(TURN, min_size=1, max_size=4), wants_json=st.booleans(), with_map=st.booleans())
def test_stream_and_blocking_answer_agree_for_arbitrary_model_answers(
    turns: Sequence[tuple[Sequence[str], Sequence[str], FinishReason | None]], wants_json: bool, with_map: bool
) -> None:
    model = Model(turns=[turn_of(*turn) for turn in turns])
    own = [WEATHER, {"type": "function", "function": {"name": "map"}}][: 2 if with_map else 1]
    fields: dict[str, Any] = {"tools": own, **({"response_format": {"type": "json_object"}} if wants_json else {})}

    async def run() -> dict[str, Any]:
        again = Model(turns=model.turns).completions().stream(scope_for(), chat(stream=True, **fields))
        streamed = collect_chunks(read_chunks([frame async for frame in again]))
        blocking = await model.completions().complete(scope_for(), chat(**fields))
        assert without_id_and_time(streamed.to_dict()) == without_id_and_time(blocking.to_dict())
        return blocking.to_dict()

    answer = asyncio.run(run())
    named = {tool["function"]["name"] for tool in own if isinstance(tool["function"], dict)}
    assert {call["function"]["name"] for call in message_of(answer).get("tool_calls", ())} <= named
    usage: Any = answer["usage"]
    assert (usage["prompt_tokens"], usage["cost_details"]["sub_calls"]) == (10 * len(model.requests), len(model.requests))
    for request in model.requests:
        check_tool_answers([_wire(message) for message in request.messages])


def _wire(message: Message) -> Any:
    from spass.completions.messages import AssistantMessage, ToolMessage, UserMessage

    match message.role:
        case Role.USER:
            return UserMessage.model_validate({"role": "user", "content": message.content})
        case Role.TOOL:
            return ToolMessage.model_validate({"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id})
        case _:
            calls = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
            return AssistantMessage.model_validate({"role": "assistant", "content": message.content, "tool_calls": calls})
