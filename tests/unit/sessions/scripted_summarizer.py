"""A scripted summarizer, which calls no model."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from spass.calls.scope import Scope
from spass.core.cost import Cost, CostSource
from spass.core.errors import SpassError
from spass.core.messages import Message
from spass.sessions.compaction.plan import Summary
from spass.sessions.compaction.summary import Summarizer

COST = Cost(Decimal("0.002"), Decimal("0.001"), CostSource.CATALOG, 1)


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The arguments of one call of the summarizer."""

    scope: Scope
    messages: Sequence[Message]
    earlier: str | None
    mask_observations: bool
    fallback_model: str | None
    seconds_left: float


@dataclass
class ScriptedSummarizer(Summarizer):
    """A summarizer that returns ``text`` or all messages as the summary, or raises ``failure``. ``during`` runs before that."""

    text: str | None = None
    failure: SpassError | None = None
    during: Callable[[], Awaitable[None]] | None = None
    asked: list[SummaryRequest] = field(default_factory=list)

    async def summarise(
        self,
        scope: Scope,
        messages: Sequence[Message],
        *,
        earlier: str | None,
        mask_observations: bool,
        fallback_model: str | None,
    ) -> Summary:
        self.asked.append(SummaryRequest(scope, messages, earlier, mask_observations, fallback_model, scope.deadline.remaining()))
        if self.during is not None:
            await self.during()
        scope.tally.add(COST)
        if self.failure is not None:
            raise self.failure
        assert fallback_model is not None, "the tokens of these tests may use any model"
        if self.text is not None:
            return Summary(self.text, fallback_model)
        contents = " / ".join(message.content for message in messages if message.content)
        return Summary(f"{earlier} / {contents}" if earlier is not None else contents, fallback_model)
