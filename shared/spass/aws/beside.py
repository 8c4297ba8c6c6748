"""What takes effect together with another write, or not at all: a confirm token that is consumed, an answer that is kept."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from spass.aws.table import Write
from spass.core.errors import SpassError

A_contra = TypeVar("A_contra", contravariant=True)


class Beside(Protocol[A_contra]):
    """Writes that go with another, which comes to an answer."""

    async def writes(self, answer: A_contra, /) -> Sequence[Write]:
        """The writes that go into the other's transaction, given what it answers."""
        ...

    def refused(self) -> SpassError:
        """What is raised when a condition of one of the writes does not hold. The other did not take place then."""
        ...
