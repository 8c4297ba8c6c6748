"""The participants of a commit: each adds writes to the one transaction that records a turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from spass.core.outcome import TurnOutcome
from spass.store.writes import Write


class Participant(Protocol):
    """Something that is stored together with a turn, or not at all."""

    async def writes(self, outcome: TurnOutcome) -> Sequence[Write]:
        """Return the writes that join the commit of the turn with this outcome. An error fails the turn."""


@runtime_checkable
class Renewable(Participant, Protocol):
    """A participant whose writes depend on what other requests may change meanwhile."""

    async def renew(self) -> Sequence[Write] | None:
        """Return newer writes for another try, because a condition of the transaction did not hold. Return None if none can
        hold. Call this only while the turn still holds its session."""


@dataclass(slots=True)
class JoinedWrites:
    """The ``writes`` of all participants of one commit. If none is renewable, a transaction that failed is not tried again."""

    writes: Sequence[Write]
    _of_each: Sequence[tuple[Participant, Sequence[Write]]]

    @classmethod
    async def of(cls, participants: Sequence[Participant], outcome: TurnOutcome) -> Self:
        """Return the writes of ``participants``, in their order."""
        of_each = [(participant, await participant.writes(outcome)) for participant in participants]
        return cls(_merge(of_each), of_each)

    @property
    def is_renewable(self) -> bool:
        return any(isinstance(participant, Renewable) for participant, _ in self._of_each)

    async def renew(self) -> bool:
        """Renew the writes of the renewable participants. Return False if the transaction can never take effect."""
        renewed: list[tuple[Participant, Sequence[Write]]] = []
        for participant, writes in self._of_each:
            newer = await participant.renew() if isinstance(participant, Renewable) else writes
            if newer is None:
                return False
            renewed.append((participant, newer))
        self._of_each, self.writes = renewed, _merge(renewed)
        return True


def _merge(of_each: Sequence[tuple[Participant, Sequence[Write]]]) -> Sequence[Write]:
    return [write for _, writes in of_each for write in writes]
