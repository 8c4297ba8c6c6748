"""Measure what five compactions in a row keep of a conversation: the length of the summary and the facts that are still found.

    python -m bench.recall [--seed N]

Facts are planted in every generation: names, numbers and decisions of a project, among twenty times as much talk. After each
compaction: are the facts in the summary, and if not, does ``lineage_search`` find them with the question that a person would
ask? The model is the offline stand-in, in process; sessions, turns, compactions and searches are the gateway's own, on an
emulated table.
"""

import argparse
import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from bench.planted_facts import PROJECTS, Fact, facts_of, talk
from bench.processes import emulated_aws, silence_logs
from local.standin.provider import StandIn
from spass.agents.engine import Engine
from spass.agents.kinds.base import AgentContext
from spass.agents.spec import AgentSpec
from spass.aws.clients import Aws
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.events import InferenceFinished, InferenceStarted, TurnFinished, collect
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId, new_id
from spass.core.messages import FinishReason, Message, Role
from spass.core.run_result import AgentRun
from spass.models.router import Router
from spass.rag.index.cache import ObjectCache
from spass.runs.commit import JoinedWrites, commit
from spass.sessions.compaction.plan import SummaryRecord
from spass.sessions.compaction.summary import Summarizer
from spass.sessions.conversation import Conversation
from spass.sessions.hold import TurnRequest
from spass.sessions.lineage_search import SessionLineageSearcher
from spass.sessions.record import load_turns
from spass.sessions.service import Sessions
from spass.sessions.session import CreateSession
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.testing.rag import build_rag
from spass.tools.builtin.lineage_search import LINEAGE_SEARCH
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import built_in

GENERATIONS: Final = 5
TURNS: Final = 60
"""In each generation; every fourth plants a fact."""

AGENT: Final = AgentName("bench")
TENANT: Final = TenantId("bench")
MODEL: Final = "stand-in"
_HUGE: Final = 10**9  # tokens of a window in which no turn has to compact
_FOUND: Final = 5  # messages that a search returns if not told otherwise

SPEC: Final = AgentSpec(name=AGENT, model=MODEL, tools=(LINEAGE_SEARCH,))
CONFIG: Final = GatewayConfig.model_validate(
    {
        "llm": {"retries": 0, "backends": [{"name": "standin", "provider": "ollama", "supported_models": [MODEL]}]},
        "models": [
            {"name": MODEL, "context_window": 8000},
            {"name": "all-minilm-l6-v2", "kind": "embedding", "dimensions": 384, "context_window": 256},
        ],
        "defaults": {"compact_summary_model": MODEL, "compact_keep_last_n": 4, "compact_strategy": "auto"},
        "tenants": [{"id": TENANT}],
    }
)


@dataclass(frozen=True, slots=True)
class RecallScore:
    """Counts of facts: all, those in the summary, those in the summary or in a search, and those that an agent with the search
    tool answers."""

    facts: int
    by_summary: int
    by_either: int
    answered: int

    def percent(self, known: int) -> int:
        return round(100 * known / self.facts)


@dataclass(frozen=True, slots=True)
class Generation:
    """The state after compaction ``number``: the words since the previous one, the summary, and the score of each generation's
    facts, first to last."""

    number: int
    words_said: int
    summary: SummaryRecord
    recall: Sequence[RecallScore]

    @property
    def words(self) -> int:
        return len(self.summary.text.split())

    @property
    def total(self) -> RecallScore:
        """Return the score of all facts so far."""
        of_all = ((one.facts, one.by_summary, one.by_either, one.answered) for one in self.recall)
        return RecallScore(*map(sum, zip(*of_all, strict=True)))


@dataclass
class RecallBench:
    """One session that is continued and compacted several times."""

    aws: Aws
    seed: int = 1
    turns: int = TURNS
    planted: list[list[Fact]] = field(default_factory=list)

    def __post_init__(self) -> None:
        cascade = Cascade(CONFIG)
        router = Router(CONFIG.llm, CONFIG.models, lambda _: None, provider_of=lambda *_: StandIn())
        calls = Calls(CONFIG, router, cascade)
        summarizer = Summarizer(calls, cascade, CONFIG)
        self._chance = random.Random(self.seed)
        self._projects = self._chance.sample(PROJECTS, GENERATIONS)
        self._store = self.aws.for_tenant(TENANT)
        self._sessions = Sessions(cascade, lambda: summarizer)
        rag = build_rag(calls, CONFIG, ObjectCache())
        toolbox = Toolbox(lambda _: (built_in("lineage", lambda _: (SessionLineageSearcher(),)),))
        self._engine = Engine(calls, toolbox, lambda: rag.reader, cascade)

    async def generations(self, count: int = GENERATIONS) -> list[Generation]:
        """Continue and compact the session ``count`` times, at most ``GENERATIONS``."""
        session = (await self._sessions.create(self._scope(), AGENT, CreateSession())).id
        done: list[Generation] = []
        for number in range(1, count + 1):
            self.planted.append(facts_of(self._projects[number - 1], self._chance))
            said = [*talk(self.planted[-1], self._chance, self.turns)]
            for user, agent in said:
                await self._say(session, user, agent, window=_HUGE)
            # Messages that are kept verbatim do not test the summary, so the last turns contain no fact.
            summary = await self._say(session, "Let us go on.", "Gladly.", window=1)
            assert summary is not None
            session = summary.successor
            words = sum(len(text.split()) for turn in said for text in turn)
            recall = [await self._recall(facts, session, summary.text) for facts in self.planted]
            done.append(Generation(number, words, summary, recall))
        return done

    async def _recall(self, facts: Sequence[Fact], session: SessionId, summary: str) -> RecallScore:
        remembered = {fact.question for fact in facts if fact.known_by(summary)}
        searched = {fact.question for fact in facts if fact.question not in remembered and await self._is_found(fact, session)}
        answered = [fact.known_by(await self._answer(fact.question, session)) for fact in facts]
        return RecallScore(len(facts), len(remembered), len(remembered | searched), sum(answered))

    async def _is_found(self, fact: Fact, session: SessionId) -> bool:
        found = await SessionLineageSearcher().search(self._scope().for_agent(AGENT, session), fact.question, _FOUND)
        return any(fact.known_by(one.excerpt) for one in found.results)

    async def _answer(self, question: str, session: SessionId) -> str:
        """Return the agent's answer in a turn that is not recorded."""
        history = [stored.message for turn in await load_turns(self._store, session, 1) for stored in turn.messages]
        scope = self._scope().for_agent(AGENT, session)

        given = AgentContext(tuple(history))
        async with aclosing(self._engine.run(scope, SPEC, question, given=given)) as events:
            return collect([event async for event in events]).content

    async def _say(self, session: SessionId, user: str, agent: str, *, window: int) -> SummaryRecord | None:
        """Run one turn. Return the summary if ``window`` is so small that the turn begins with a compaction."""

        scope = self._scope()
        run = AgentRun(scope.caller.request_id, AGENT, "orchestrator", MODEL)
        request = TurnRequest(session, scope.caller.require_user(), user, run, window)
        async with self._sessions.hold(scope, request) as conversation:
            assert isinstance(conversation, Conversation)
            assert await conversation.load() is None
            await conversation.history()
            conversation.record(InferenceStarted(1))
            conversation.record(InferenceFinished(Message(Role.ASSISTANT, agent), FinishReason.STOP))
            conversation.record(TurnFinished(FinishReason.STOP))
            await commit(conversation, await JoinedWrites.of((), conversation.finish()))
        if conversation.compaction_error is not None:
            raise conversation.compaction_error
        return conversation.compaction.summary if conversation.compaction is not None else None

    def _scope(self) -> Scope:
        identity = Identity(TENANT, "bench", admin=False, allowed_models=("*",))
        caller = Caller(identity, UserId("bench"), RequestId(new_id("req")), None, 0, "bench")
        return replace(Scope.for_request(caller, self._store), agent=AGENT)


def report(generations: Sequence[Generation]) -> Iterator[str]:
    """Yield a line for each generation: the facts in the summary alone, and in the summary or a search."""
    yield "           |       | words of |    facts of generation 1, in %    |    facts of all so far, in %"
    yield "generation |  said |  summary | summary | + search | answered | summary | + search | answered"
    for one in generations:
        row = f"{one.number:10} | {one.words_said:5} | {one.words:8}"
        for recall in (one.recall[0], one.total):
            row += f" | {recall.percent(recall.by_summary):7} | {recall.percent(recall.by_either):8}"
            row += f" | {recall.percent(recall.answered):8}"
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recall", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of what is said")
    seed = parser.parse_args().seed
    with emulated_aws() as environment:
        os.environ.update(environment)
        print(f"The offline stand-in, {TURNS} turns a generation, fourteen facts in each (seed {seed}):\n")
        with silence_logs():
            generations = asyncio.run(RecallBench(Aws(table="spass", bucket="spass"), seed).generations())
        print(*report(generations), sep="\n")


if __name__ == "__main__":
    main()
