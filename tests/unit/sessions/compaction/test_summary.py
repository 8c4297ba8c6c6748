"""Requests to the summary model, and its answers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spass.calls.scope import Scope
from spass.core.errors import ModelNotAllowed
from spass.core.messages import FinishReason, Message, Role
from spass.models import errors as llm
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sessions.compaction.summary import MAX_SUMMARY_CHARACTERS
from spass.store.tenant_store import TenantStore
from spass.testing.model import Answer, ScriptedModel
from tests.unit.calls.scripted_provider import audit_of, make_scope
from tests.unit.sessions.compaction.summary_models import (
    config,
    conversation,
    instruction,
    material,
    merges,
    summarise,
    summary_deltas,
    summary_model,
)

pytestmark = pytest.mark.anyio

SHORT = conversation(2)
LONG = conversation(40)


async def summary_of(
    model: ScriptedModel,
    scope: Scope,
    messages: Sequence[Message],
    *,
    by: str | None = "small",
    earlier: str | None = None,
    mask_observations: bool = True,
) -> str:
    return (await summarise(model, scope, messages, config(by), earlier=earlier, mask_observations=mask_observations)).text


def numbering_model() -> Callable[[ChatRequest], Answer]:
    """Return a model that numbers its summaries."""
    numbers = iter(range(1, 10_000))
    return lambda _: summary_deltas(f"Summary {next(numbers)}.")


async def test_a_short_conversation_is_summarised_by_one_call(store: TenantStore) -> None:
    model = summary_model(lambda _: summary_deltas(" Ana has 300 Euro.\n"))
    summary = await summarise(model, make_scope(store), SHORT, earlier="Ana moves.")
    assert (summary.text, summary.model) == ("Ana has 300 Euro.", "small")
    (request,) = model.requests
    assert [message.role for message in request.messages] == [Role.SYSTEM, Role.USER]
    assert material(request)[:2] == [{"earlier_summary": "Ana moves."}, {"user": SHORT[0].content}]
    assert len(material(request)) == 1 + len(SHORT)
    assert request.tools == ()
    assert request.stream, "only a streamed summary may take longer than the timeout of a backend"
    assert request.max_tokens is not None


async def test_only_a_masked_summary_is_told_to_leave_out_tool_output(store: TenantStore) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    await summary_of(model, make_scope(store), SHORT, mask_observations=True)
    await summary_of(model, make_scope(store), SHORT, mask_observations=False)
    masked, raw = model.requests
    assert "Leave out greetings, acknowledgements, raw tool output and error traces." in instruction(masked)
    assert "Keep names, numbers, decisions and open questions." in instruction(masked)
    assert "eave out" not in instruction(raw)
    assert "greetings" not in instruction(raw)
    assert material(masked) == material(raw)


async def test_a_model_that_rejects_the_temperature_is_called_without_it(store: TenantStore) -> None:
    def write(request: ChatRequest) -> Answer:
        if request.temperature is not None:
            return llm.BackendBadRequest("Unsupported value: 'temperature' does not support 0 with this model.")
        return summary_deltas("Part.")

    model = summary_model(write)
    assert await summary_of(model, make_scope(store), conversation(200)) == "Part."
    with_temperature = [request for request in model.requests if request.temperature is not None]
    assert 1 <= len(with_temperature) <= 4, "only requests that were in flight at the first refusal have a temperature"


async def test_an_answer_that_was_cut_off_is_requested_with_twice_the_tokens(store: TenantStore) -> None:
    def write(request: ChatRequest) -> Answer:
        assert request.max_tokens is not None
        return (
            summary_deltas("<think>Ana has", FinishReason.LENGTH)
            if request.max_tokens < 6000
            else summary_deltas("<think>Well.</think>Ana.")
        )

    model = summary_model(write)
    assert await summary_of(model, make_scope(store), conversation(200), by="vast") == "Ana."
    assert [request.max_tokens for request in model.requests] == [4096, 8192]


async def test_without_a_summary_model_the_agents_model_writes_the_summary(store: TenantStore) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    summary = await summarise(model, make_scope(store), SHORT, config(None))
    assert summary.model == "own"
    assert model.requests[0].model == "own"


@pytest.mark.parametrize("fallback_model", ["own", None])
async def test_without_a_summary_model_the_token_must_allow_the_agents_model(
    store: TenantStore, fallback_model: str | None
) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    work = summarise(model, make_scope(store, allowed=["small"]), SHORT, config(None), fallback_model=fallback_model)
    with pytest.raises(ModelNotAllowed, match="compact_summary_model"):
        await work
    assert model.requests == []


async def test_calls_of_the_tenants_summary_model_are_audited_and_counted(store: TenantStore) -> None:
    scope = make_scope(store, allowed=["nothing"])
    model = summary_model(numbering_model())
    before = len(await audit_of(store))
    await summary_of(model, scope, LONG)
    records = (await audit_of(store))[before:]
    assert len(records) == len(model.requests) > 2
    assert {(record["model"], record["token_id"], record["user"], record["status"]) for record in records} == {
        ("small", "token-1", "anna", "ok")
    }
    assert scope.tally.total.usd > 0


async def test_a_long_conversation_is_summarised_in_parts_with_the_earlier_summary(store: TenantStore) -> None:
    model = summary_model(numbering_model())
    text = await summary_of(model, make_scope(store), conversation(20), earlier="Ana moves.")
    parts, (last,) = model.requests[:-1], model.requests[-1:]
    assert len(parts) > 1
    assert text == f"Summary {len(model.requests)}."
    lines = [line for part in sorted(parts, key=lambda part: first_turn(part)) for line in material(part)]
    assert [line["user"] for line in lines if "user" in line] == [m.content for m in conversation(20) if m.role is Role.USER]
    assert not any("earlier_summary" in line for line in lines)
    assert material(last)[0] == {"earlier_summary": "Ana moves."}
    assert [line["part"] for line in material(last)[1:]] == [*range(1, len(parts) + 1)]
    by_part = {first_turn(part): f"Summary {number}." for number, part in enumerate(parts, 1)}
    assert [line["summary"] for line in material(last)[1:]] == [by_part[turn] for turn in sorted(by_part)]


async def test_summaries_of_parts_keep_the_order_of_the_parts(store: TenantStore) -> None:
    other_called = asyncio.Event()

    async def write(request: ChatRequest, _: CallContext) -> AsyncGenerator[ChatDelta, None]:
        if not merges(request):
            if first_turn(request) == 0:
                await other_called.wait()
            else:
                other_called.set()
        yield summary_deltas("Whole." if merges(request) else f"From turn {first_turn(request)}.")[0]

    model = ScriptedModel(write)
    assert await summary_of(model, make_scope(store), LONG) == "Whole."
    turns = [int(line["summary"].removeprefix("From turn ").rstrip(".")) for line in material(model.requests[-1])]
    assert turns == sorted(turns)
    assert turns[0] == 0


def first_turn(request: ChatRequest) -> int:
    words = json.dumps(material(request)).replace("answer-", "turn-").replace("result-", "turn-").split("turn-", 1)[1]
    return int(words[: next(at for at, sign in enumerate(words) if not sign.isdigit())])


async def test_summaries_of_parts_that_do_not_fit_are_summarised_in_parts(store: TenantStore) -> None:
    model = summary_model(lambda request: summary_deltas("x" * 200))
    assert await summary_of(model, make_scope(store), conversation(60), by="small") == "x" * 200
    assert sum(map(merges, model.requests)) > 2
    assert len(material(model.requests[-1])) > 1


async def test_an_earlier_summary_larger_than_the_window_is_split(store: TenantStore) -> None:
    model = summary_model(lambda request: summary_deltas("short"))
    assert await summary_of(model, make_scope(store), SHORT, by="tiny", earlier="fact " * 1200) == "short"


MESSAGES = st.lists(st.integers(1, 60), min_size=1, max_size=12).map(
    lambda sizes: [message for size in sizes for message in conversation(1, size)]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES, st.sampled_from([300, 350, 500, 900]), st.booleans(), st.integers(0, 400))
def test_every_request_fits_the_window_and_every_summary_its_limit(
    store: TenantStore, messages: list[Message], window: int, mask_observations: bool, earlier: int
) -> None:
    """This holds for all summaries that are not longer than requested."""

    def write(request: ChatRequest) -> list[ChatDelta]:
        words = int(instruction(request).split("at most ")[1].split(" ")[0])
        return summary_deltas("x" * 12 * words)  # the longest text that is accepted

    model = summary_model(write)
    gateway = config("tiny")
    gateway = gateway.model_copy(
        update={"models": tuple(one.model_copy(update={"context_window": window}) for one in gateway.models)}
    )
    work = summarise(
        model, make_scope(store), messages, gateway, earlier="fact " * earlier or None, mask_observations=mask_observations
    )
    text = asyncio.run(work).text
    assert 0 < len(text) <= MAX_SUMMARY_CHARACTERS
    for request in model.requests:
        characters = sum(len(message.content) for message in request.messages)
        assert characters / 4 + (request.max_tokens or 0) <= window


async def test_a_huge_message_stays_below_the_limit_of_the_input_defence(store: TenantStore) -> None:
    model = summary_model(lambda _: summary_deltas("Long."))
    assert await summary_of(model, make_scope(store), [Message(Role.USER, "word " * 500_000)], by="vast") == "Long."
    assert len(model.requests) == 4


async def test_the_requested_length_does_not_grow_with_the_window(store: TenantStore) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    for name in ("roomy", "vast"):
        await summary_of(model, make_scope(store), SHORT, by=name)
    assert [("at most 500 words" in instruction(request)) for request in model.requests] == [True, True]
    assert all((request.max_tokens or 0) <= 4096 for request in model.requests)


@pytest.mark.parametrize(
    "first",
    [summary_deltas("word " * 2000), summary_deltas("cut o", FinishReason.LENGTH), summary_deltas("", FinishReason.LENGTH)],
)
async def test_a_shorter_summary_is_requested_once_after_one_that_is_too_long(store: TenantStore, first: list[ChatDelta]) -> None:
    answers = iter([first, summary_deltas("Short.")])
    model = summary_model(lambda _: next(answers))
    assert await summary_of(model, make_scope(store), SHORT) == "Short."
    longer, shorter = (int(instruction(request).split("at most ")[1].split(" ")[0]) for request in model.requests)
    assert shorter == longer // 2
    assert model.requests[0].messages[1] == model.requests[1].messages[1]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (summary_deltas("\u200bAna\u2060 moves.\u202e \n"), "Ana moves."),
        (summary_deltas("Ana moves \ud83d."), "Ana moves ?."),
        (summary_deltas("<think>\nWho is Ana?\n</think>\n\nAna moves."), "Ana moves."),
        ([ChatDelta("Ana "), ChatDelta("moves."), ChatDelta(finish_reason=FinishReason.STOP)], "Ana moves."),
    ],
    ids=["invisible characters", "half of a surrogate pair", "reasoning", "several deltas"],
)
async def test_a_summary_is_the_visible_text_of_all_deltas(store: TenantStore, written: list[ChatDelta], text: str) -> None:
    assert await summary_of(summary_model(lambda _: written), make_scope(store), SHORT) == text


async def test_a_cancelled_summary_leaves_no_call_in_flight(store: TenantStore) -> None:
    model_called = asyncio.Event()

    def wait(request: ChatRequest) -> list[ChatDelta]:
        model_called.set()
        return summary_deltas("Part.")

    model = summary_model(wait)
    scope = make_scope(store)
    work = asyncio.create_task(summary_of(model, scope, LONG))
    await model_called.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    call_count = len(model.requests)
    await asyncio.sleep(0)
    assert (model.closed, len(model.requests)) == (call_count, call_count)


async def test_calls_use_the_scope_of_the_request_except_its_allow_list(store: TenantStore) -> None:
    """The scope of these calls differs from the scope of the request only in the allow-list of its token."""
    scope = make_scope(store, allowed=["nothing"])
    unrestricted = scope.with_any_model
    assert unrestricted.caller.identity.allows("small")
    assert not scope.caller.identity.allows("small")
    assert replace(unrestricted, caller=scope.caller) == scope
    assert replace(unrestricted.caller, identity=scope.caller.identity) == scope.caller
    assert unrestricted.tally is scope.tally
