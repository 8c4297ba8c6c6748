"""A search of the lineage finds messages that a summary left out, in sessions of the same user and agent only."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.core.errors import NothingToCompact, SessionAgentMismatch, SessionNotFound
from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.core.messages import Message, Role
from spass.core.time import timestamp
from spass.sessions import lineage_search, record
from spass.sessions.lineage_search import SessionLineageSearcher
from spass.store import keys
from spass.store.overflow import Overflow
from spass.store.writes import Update
from spass.testing.aws import MemoryAws
from spass.tools.builtin.lineage_search import LineageSearchResult
from tests.sampling import SOAK
from tests.unit.sessions.session_chains import ChainBuilder, memory_store, plain_turn, tool_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws() -> Iterator[MemoryAws]:
    with memory_store() as aws:
        yield aws


@pytest.fixture
def chains(aws: MemoryAws) -> ChainBuilder:
    return ChainBuilder(aws.for_tenant(TenantId("demo")))


DEFAULT_SEARCHER = SessionLineageSearcher()


async def search(
    chains: ChainBuilder, session: SessionId, query: str, searcher: SessionLineageSearcher = DEFAULT_SEARCHER, limit: int = 5
) -> LineageSearchResult:
    return await searcher.search(chains.within(session), query, limit)


async def find_messages(chains: ChainBuilder, session: SessionId, query: str, limit: int = 5) -> list[tuple[SessionId, int]]:
    return [(one.session, one.seq) for one in (await search(chains, session, query, limit=limit)).results]


async def test_a_search_finds_a_message_that_the_summary_left_out(chains: ChainBuilder) -> None:
    source = await chains.session(
        plain_turn("The offer of Kowalski is 4711 euros.", "Noted."), plain_turn("And the weather?", "Fine.")
    )
    now = await chains.compact(source, "They spoke of an offer.")
    recollection = await search(chains, now, "kowalski offer")
    (one,) = recollection.results
    assert (one.session, one.seq, one.role) == (source, 1, Role.USER)
    assert one.excerpt == "The offer of Kowalski is 4711 euros."
    assert one.created_at == timestamp(1_800_000_002.0)
    assert one.score > 0
    assert (recollection.searched, recollection.truncated) == (4, False)


async def test_live_messages_are_not_searched(chains: ChainBuilder) -> None:
    source = await chains.session(plain_turn("one zebra"), plain_turn("two zebras"), plain_turn("three zebra"))
    assert await find_messages(chains, source, "zebra") == []
    now = await chains.compact(source, "zebra", keep=2)
    await chains.say(now, plain_turn("four zebra"))
    assert await find_messages(chains, now, "zebra") == [(source, 1)], "kept messages and summaries are not searched"


async def test_a_kept_message_is_found_after_its_own_compaction(chains: ChainBuilder) -> None:
    first = await chains.session(plain_turn("one"), plain_turn("two zebra"))
    second = await chains.compact(first, "zebra", keep=2)
    await chains.say(second, plain_turn("three"))
    third = await chains.compact(second, "zebra")
    assert await find_messages(chains, third, "zebra") == [(second, 2)], "the message is found once, and the summary is not"


async def test_a_session_archived_during_the_turn_is_searched(chains: ChainBuilder) -> None:
    source = await chains.session(plain_turn("one zebra"), plain_turn("two zebra"))
    now = await chains.compact(source, "animals", keep=2)
    assert await find_messages(chains, source, "zebra") == await find_messages(chains, now, "zebra") == [(source, 1)]


async def test_equal_scores_come_newest_first(chains: ChainBuilder) -> None:
    first = await chains.session(plain_turn("zebra"), plain_turn("zebra"))
    second = await chains.compact(first)
    await chains.say(second, plain_turn("zebra"))
    now = await chains.compact(second)
    for _ in range(3):
        assert await find_messages(chains, now, "zebra") == [(second, 2), (first, 3), (first, 1)]
    assert await find_messages(chains, now, "zebra", limit=2) == [(second, 2), (first, 3)]


async def test_arguments_and_results_of_tools_are_searched(chains: ChainBuilder) -> None:
    turn = tool_turn("when?", "rag_query", '{"query": "G\\u00f6rlitz"}', '{"text": "It opened in 1847."}')
    now = await chains.compact(await chains.session(turn))
    (tool_call,) = (await search(chains, now, "gorlitz")).results
    assert (tool_call.seq, tool_call.role, tool_call.excerpt) == (2, Role.ASSISTANT, 'rag_query {"query": "Görlitz"}')
    (result,) = (await search(chains, now, "1847")).results
    assert (result.seq, result.role) == (3, Role.TOOL)


async def test_results_of_earlier_searches_are_not_searched(chains: ChainBuilder) -> None:
    first = await chains.session(plain_turn("the zebra is Marty"))
    second = await chains.compact(first)
    await chains.say(second, tool_turn("who?", "calculator", "{}", "zebra 1"))
    await chains.say(second, tool_turn("who?", "lineage_search", '{"query": "zebra"}', '{"results": [{"content": "zebra"}]}'))
    await chains.say(second, tool_turn("who?", "calculator", "{}", "zebra 2"))
    now = await chains.compact(second)
    assert sorted(await find_messages(chains, now, "zebra")) == sorted([(first, 1), (second, 4), (second, 12)])


async def test_a_deleted_ancestor_is_not_searched_but_older_ones_are(chains: ChainBuilder) -> None:
    first = await chains.session(plain_turn("one zebra"))
    second = await chains.compact(first)
    await chains.say(second, plain_turn("two zebra"))
    third = await chains.compact(second)
    await chains.delete(second)
    assert await find_messages(chains, third, "zebra") == [(first, 1)]


async def test_an_ancestor_whose_delete_was_interrupted_is_not_searched(chains: ChainBuilder) -> None:
    first = await chains.session(plain_turn("one zebra"))
    now = await chains.compact(first)
    head = keys.session_head(chains.store.tenant, first)
    await chains.store.table.write(Update(head, set={"deleted_at": timestamp(chains.now)}))
    assert await chains.texts(first) == ["one zebra", "yes"]
    assert await find_messages(chains, now, "zebra") == []


async def test_a_body_deleted_during_the_search_hides_only_its_own_session(
    chains: ChainBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await chains.session(plain_turn("one zebra"))
    second = await chains.compact(first)
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    await chains.say(second, plain_turn("two zebra"))
    now = await chains.compact(second)
    bodies = await chains.store.objects.list_keys(f"sessions/{second}/")
    await chains.store.objects.delete(bodies)
    recollection = await search(chains, now, "zebra")
    assert [(one.session, one.seq) for one in recollection.results] == [(first, 1)]
    assert recollection.truncated


async def test_other_users_agents_and_tenants_cannot_search_the_session(chains: ChainBuilder, aws: MemoryAws) -> None:
    now = await chains.compact(await chains.session(plain_turn("one zebra")))
    for other in (ChainBuilder(chains.store, user=UserId("ben")), ChainBuilder(aws.for_tenant(TenantId("other")))):
        with pytest.raises(SessionNotFound):
            await search(other, now, "zebra")
    with pytest.raises(SessionAgentMismatch):
        await SessionLineageSearcher().search(chains.scope.for_agent(AgentName("researcher"), now), "zebra", 5)
    with pytest.raises(SessionNotFound):
        await SessionLineageSearcher().search(chains.scope, "zebra", 5)


async def test_a_search_is_bounded_by_ancestors_characters_and_time(chains: ChainBuilder) -> None:
    members = await chains.chain(4)
    assert not (await search(chains, members[-1], "question")).truncated
    recollection = await search(chains, members[-1], "question", SessionLineageSearcher(max_ancestors=2))
    assert {one.session for one in recollection.results} == {members[1], members[2]}
    assert recollection.truncated
    recollection = await search(chains, members[-1], "question", SessionLineageSearcher(max_characters=1))
    assert {one.session for one in recollection.results} == {members[2]}, "the nearest ancestor is searched first"
    assert recollection.truncated
    out_of_time = await search(chains, members[-1], "question", SessionLineageSearcher(max_seconds=0.0))
    assert out_of_time == LineageSearchResult((), 0, truncated=True)


async def test_other_tasks_run_during_a_long_search(chains: ChainBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several turns are read together, and each may contain megabytes of text."""
    turns = lineage_search._TURNS_PER_READ
    source = await chains.session(*(plain_turn(f"alpha {number}", "Noted.") for number in range(turns)))
    now = await chains.compact(source)
    rounds, rounds_per_text, text = 0, list[int](), lineage_search._text

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    def record_rounds(message: Message) -> str:
        rounds_per_text.append(rounds)
        return text(message)

    monkeypatch.setattr(lineage_search, "_text", record_rounds)
    other_task = asyncio.create_task(count_rounds())
    await search(chains, now, "alpha")
    other_task.cancel()
    assert len(set(rounds_per_text)) == turns


async def test_the_excerpt_of_a_long_message_is_short_and_contains_the_word(chains: ChainBuilder) -> None:
    now = await chains.compact(await chains.session(plain_turn("a " * 5000 + "zebra" + " b" * 5000)))
    (one,) = (await search(chains, now, "zebra")).results
    assert len(one.excerpt) <= 1200
    assert "zebra" in one.excerpt


PLACES = ("question", "answer", "arguments", "result")


@settings(max_examples=3000 if SOAK else 60)
@given(
    turns=st.lists(st.lists(st.sampled_from(["asked", "looked up"]), min_size=1, max_size=4), min_size=1, max_size=4),
    keep=st.integers(0, 5),
    at=st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(PLACES)),
    deleted=st.sets(st.integers(0, 3), max_size=2),
    word=st.sampled_from(["kraken", "Kraków", "4711", "ЁЖИК", "ﬁnch"]),
)
async def test_a_search_finds_exactly_the_compacted_messages_with_the_word(
    turns: list[list[str]], keep: int, at: tuple[int, int, str], deleted: set[int], word: str
) -> None:
    """Another user, another tenant and another chain of the same user also have the word in all places. It is not found there."""
    place = at[0] % len(turns), at[1] % len(turns[at[0] % len(turns)]), at[2]
    with memory_store() as aws:
        chains = ChainBuilder(aws.for_tenant(TenantId("demo")))
        for other in (ChainBuilder(chains.store, user=UserId("ben")), ChainBuilder(aws.for_tenant(TenantId("demo-2"))), chains):
            await other.compact(await other.session(turn_with_word("looked up", word, PLACES)))
        found_places, expected = await search_chain(chains, turns, keep, place, deleted, word)
        assert found_places == expected


async def search_chain(
    chains: ChainBuilder, turns: list[list[str]], keep: int, place: tuple[int, int, str], deleted: set[int], word: str
) -> tuple[set[tuple[SessionId, int]], set[tuple[SessionId, int]]]:
    """Return the found messages, and the messages with the word that were compacted and not deleted."""
    members = [await chains.session()]
    for number, turn_kinds in enumerate(turns):
        for turn, kind in enumerate(turn_kinds):
            places = [place[2]] if (number, turn) == place[:2] else []
            await chains.say(members[-1], turn_with_word(kind, word, places))
        with suppress(NothingToCompact):
            members.append(await chains.compact(members[-1], "a summary", keep))
    now = members[-1]
    deleted_members = {members[number] for number in deleted if number < len(members) - 1}
    for member in deleted_members:
        await chains.delete(member)
    expected = set()
    for member in set(members[:-1]) - deleted_members:
        head = await chains.head(member)
        for seq, text in enumerate(await chains.texts(member), 1):
            has_word = word in text or (place[2] == "arguments" and text == "I look it up.")
            if has_word and seq < head.compacted_before:
                expected.add((member, seq))
    return set(await find_messages(chains, now, word.lower(), limit=20)), expected


def turn_with_word(kind: str, word: str, places: Sequence[str]) -> list[Message]:
    """Return a turn with ``word`` in these places. In a turn without tools, the answer replaces all places but the question."""
    texts = {place: f"here is {word}." if place in places else "nothing" for place in PLACES}
    if kind == "asked":
        return plain_turn(texts["question"], f"here is {word}." if set(places) - {"question"} else "nothing")
    arguments = json.dumps({"query": texts["arguments"]})
    question, call, *rest = tool_turn(texts["question"], "rag_query", arguments, texts["result"], texts["answer"])
    return [question, replace(call, content="I look it up." if "arguments" in places else ""), *rest]
