"""The same scripts in the wire forms of OpenAI, Anthropic and Ollama, split at every byte, give the same answers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pytest

from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import AttemptFailed, BackendUnavailable
from spass.models.types import ChatDelta, ReplyBuilder
from tests.unit.models.scripted_upstream import Answer, Upstream, context, provider_at, request
from tests.unit.models.wire_forms import CUT, SCRIPTS, USAGE, WIRE_FORMS, WireScript, call

pytestmark = pytest.mark.anyio


class ReadAnswer(NamedTuple):
    """What a caller reads of an answer, up to its end or its failure. The ids of calls are left out: each provider makes its own.

    ``pieces`` are the texts in the order of their arrival, and the names of calls between them.
    """

    pieces: Sequence[str]
    calls: Sequence[tuple[str, str]]
    finish_reason: FinishReason | None
    usage: TokenUsage | None
    failure: tuple[type[AttemptFailed], str] | None


async def read(provider: str, chunks: Sequence[bytes]) -> ReadAnswer:
    deltas: list[ChatDelta] = []
    failure = None
    try:
        async for delta in provider_at(Upstream(Answer(chunks=chunks)), provider).chat(request(stream=True), context()):
            deltas.append(delta)
    except AttemptFailed as error:
        failure = (type(error), error.message)
    builder = ReplyBuilder()
    for delta in deltas:
        builder.add(delta)
    reply = builder.reply
    ids = [one.id for one in reply.message.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    names = ((delta.content, *(one.name for one in delta.tool_calls)) for delta in deltas)
    return ReadAnswer(
        [piece for pieces in names for piece in pieces if piece],
        [(one.name, one.arguments) for one in reply.message.tool_calls],
        None if failure else reply.finish_reason,
        None if failure else reply.usage,
        failure,
    )


def expected_of(script: WireScript) -> ReadAnswer:
    pieces = [piece for step in script.steps for piece in ([step] if isinstance(step, str) else [one.name for one in step])]
    calls = [(one.name, one.text) for one in script.calls]
    if script.error or script.cut:
        return ReadAnswer(pieces, calls, None, None, (BackendUnavailable, script.error or CUT))
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    return ReadAnswer(pieces, calls, FinishReason.LENGTH if script.is_too_long else reason, USAGE, None)


def splits(body: bytes) -> Iterator[list[bytes]]:
    """Yield the body whole, in pieces of each small size, and in two pieces at many places."""
    yield [body]
    for size in (1, 2, 3, 5, 11, 64):
        yield [body[at : at + size] for at in range(0, len(body), size)]
    for at in range(1, len(body), max(7, len(body) // 50)):
        yield [body[:at], body[at:]]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("provider", WIRE_FORMS)
async def test_every_wire_form_of_a_script_is_read_alike(provider: str, name: str) -> None:
    pieces = WIRE_FORMS[provider](SCRIPTS[name])
    expected = expected_of(SCRIPTS[name])
    assert await read(provider, pieces) == expected
    for chunks in splits(b"".join(pieces)):
        assert await read(provider, chunks) == expected


BROKEN_ANYWHERE: Final[Mapping[str, WireScript]] = {
    "text": WireScript(["In Kö", "ln."]),
    "calls": WireScript(["Look.", [call("weather", {"city": "Köln"}, piece=4), call("weather", {"city": "Bonn"})]]),
}


@pytest.mark.parametrize("name", BROKEN_ANYWHERE)
@pytest.mark.parametrize("provider", WIRE_FORMS)
async def test_a_stream_that_breaks_at_any_byte_fails_after_a_part_of_its_answer(provider: str, name: str) -> None:
    script = BROKEN_ANYWHERE[name]
    whole = expected_of(script)
    body = b"".join(WIRE_FORMS[provider](script))
    for at in range(0, len(body), 3):
        answer = await read(provider, [body[:at]])
        assert whole.pieces[: len(answer.pieces)] == answer.pieces
        for (called, arguments), (full_name, full_arguments) in zip(answer.calls, whole.calls, strict=False):
            assert called == full_name
            assert full_arguments.startswith(arguments)
        if answer.failure is None:
            assert (answer.pieces, answer.calls, answer.finish_reason) == whole[:3]
        else:
            assert answer.failure[0] is BackendUnavailable


@pytest.mark.parametrize("provider", ["openai", "ollama"])
async def test_an_event_with_too_many_calls_is_refused_without_reading_them(provider: str) -> None:
    script = WireScript([[call("weather", {})] * 60_000])
    chunks = WIRE_FORMS[provider](script)
    started = time.process_time()
    answer = await read(provider, chunks)
    assert time.process_time() - started < 1
    assert answer.failure is not None
    assert (answer.pieces, answer.failure[0]) == ([], BackendUnavailable)
