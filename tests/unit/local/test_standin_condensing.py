"""The stand-in summarises for the gateway's compaction."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.standin.provider import StandIn
from local.standin.wire import complete
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.ids import RequestId, TenantId
from spass.core.messages import Message, Role, ToolCall
from spass.core.time import Deadline
from spass.models.providers.openai_compatible import chat_body
from spass.models.router import Router
from spass.models.types import ChatRequest
from spass.sessions.compaction.summary import Summarizer
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws

CONFIG = GatewayConfig.model_validate(
    {
        "llm": {"retries": 0, "backends": [{"name": "s", "provider": "ollama", "supported_models": ["wide", "narrow"]}]},
        "models": [{"name": "wide", "context_window": 128_000}, {"name": "narrow", "context_window": 1200}],
        "tenants": [{"id": "demo"}],
    }
)


async def summary(messages: Sequence[Message], earlier: str | None = None, *, model: str = "wide") -> str:
    cascade = Cascade(CONFIG)
    router = Router(CONFIG.llm, CONFIG.models, lambda _: None, provider_of=lambda *_: StandIn())
    store = MemoryAws(clock=lambda: 1_800_000_000.0).for_tenant(TenantId("demo"))
    scope = Scope.for_job(store, Deadline.after(60), route="test", request_id=RequestId("req_1"))
    summarizer = Summarizer(Calls(CONFIG, router, cascade), cascade, CONFIG)
    return (await summarizer.summarise(scope, messages, earlier=earlier, mask_observations=True, fallback_model=model)).text


def turns_of(*turns: tuple[str, str]) -> list[Message]:
    return [message for user, agent in turns for message in (Message(Role.USER, user), Message(Role.ASSISTANT, agent))]


TURNS = turns_of(
    ("Hello!", "Hi."),
    ("My budget is 300 Euro. It was nice outside this morning, by the way.", "Noted."),
    ("Who brings the ladder?", "I am the offline stand-in model and find nothing about that."),
    ("Ada Lovelace signs on 3 May.", "Thanks."),
)
SEARCH = ToolCall("c1", "rag_query", '{"query": "roof"}')
TOOL_TURNS = [
    Message(Role.USER, "Look up who builds the roof."),
    Message(Role.ASSISTANT, "", (SEARCH,)),
    Message(
        Role.TOOL, json.dumps({"results": [{"text": "Row 7 of the register says Karl Friedrich Schinkel."}]}), tool_call_id="c1"
    ),
    Message(Role.ASSISTANT, "Schinkel builds the roof."),
]

pytestmark = pytest.mark.anyio


async def test_the_summary_has_what_was_said_but_no_questions_and_no_single_words() -> None:
    assert await summary(TURNS) == (
        "My budget is 300 Euro. It was nice outside this morning, by the way. Ada Lovelace signs on 3 May."
    )


async def test_tool_output_is_not_in_the_summary() -> None:
    assert await summary(TOOL_TURNS) == "Look up who builds the roof. Schinkel builds the roof."


async def test_an_earlier_summary_is_included_without_repetition() -> None:
    turns = turns_of(("My budget is 300 Euro.", "Noted."), ("Bruno Conti tests.", "Noted."))
    assert await summary(turns, "My budget is 300 Euro.") == "My budget is 300 Euro. Bruno Conti tests."


async def test_a_summary_in_several_calls_has_facts_of_every_part() -> None:
    turns = [(f"{'The day was long and the road was dusty. ' * 6}Room {n} goes to Ada.", "Noted.") for n in range(20)]
    text = await summary(turns_of(*turns), model="narrow")
    assert {f"Room {n} " in text for n in range(0, 20, 3)} == {True}


async def test_a_summary_of_small_talk_says_that_there_is_nothing() -> None:
    assert await summary(turns_of(("Hello!", "Hi."), ("Thanks!", "Bye."))) == "So far nothing was said that has to be kept."


def test_it_condenses_a_conversation_when_asked() -> None:
    chatter = " ".join(f"Okay, this is fine with all of us {word}." for word in ("again", "too", "now", "still") * 10)
    said = ("Our budget is 300 Euro.", chatter, "Ada Lovelace decides on 3 May.", "Summarise this.")
    text = complete({"messages": [{"role": "user", "content": content} for content in said]}).content or ""
    assert "300 Euro" in text
    assert "Ada Lovelace" in text
    assert len(text) < len(chatter) / 2


WORDS = st.sampled_from(["Ada", "tower", "300", "the", "?", ".", "Brücke", '"', "\n", "\\"])
TEXT = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=12), st.integers(1, 60))
def test_a_summary_respects_its_word_limit_and_is_deterministic(turns: list[tuple[str, str]], bound: int) -> None:
    lines = "\n".join(json.dumps({role: text}) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True))
    messages = (Message(Role.SYSTEM, f"You summarise. Write at most {bound} words."), Message(Role.USER, lines))
    body = chat_body(ChatRequest("m", messages), "max_tokens")
    content = complete(body).content
    assert content
    assert len(content.split()) <= max(bound, len(["So", "far", "nothing", "was", "said", "that", "has", "to", "be", "kept."]))
    assert complete(body).content == content


LABELLED = Message(Role.ASSISTANT, "[compaction summary from session ses_1] My budget is 300 Euro. Bruno tests the tower.")
SEARCHABLE = {"type": "function", "function": {"name": "lineage_search", "parameters": {"type": "object"}}}


def request_for(question: str, *messages: Message) -> dict[str, object]:
    request = ChatRequest("m", (*messages, Message(Role.USER, question)))
    return {**chat_body(request, "max_tokens"), "tools": [SEARCHABLE]}


def test_it_answers_from_a_summary_without_its_label() -> None:
    assert complete(request_for("What is my budget?", LABELLED)).content == "My budget is 300 Euro."


def test_it_searches_for_a_fact_that_is_not_in_the_summary() -> None:
    (call,) = complete(request_for("Who translates the tower's manual?", LABELLED)).tool_calls
    assert call["function"] == {"name": "lineage_search", "arguments": '{"query": "Who translates the tower\'s manual?"}'}


def test_it_does_not_search_without_a_summary() -> None:
    assert complete(request_for("Who translates the manual?", Message(Role.ASSISTANT, "Bruno tests."))).tool_calls == []
    assert complete(request_for("The manual is done.", LABELLED)).tool_calls == []


def test_it_answers_from_a_hit_or_says_that_it_found_nothing() -> None:
    call = ToolCall("c1", "lineage_search", '{"query": "Who translates the manual?"}')

    def answer(*contents: str) -> str | None:
        hits = [{"session_id": "ses_0", "seq": 3, "role": "user", "content": text, "score": 7.5} for text in contents]
        result = Message(Role.TOOL, json.dumps({"results": hits, "searched_messages": 9}), tool_call_id="c1")
        messages = (LABELLED, Message(Role.USER, "Who translates the manual?"), Message(Role.ASSISTANT, "", (call,)), result)
        return complete(chat_body(ChatRequest("m", messages), "max_tokens")).content

    assert answer("It rains.", "My sister Ada translates the manual.") == "My sister Ada translates the manual."
    assert "stand-in" in (answer("It rains.") or "")
    assert "stand-in" in (answer() or "")
