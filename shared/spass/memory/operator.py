"""The identity of an operator within its tenant."""

from dataclasses import dataclass

from spass.core.ids import OperatorId, UserId


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of ``user``, the owner (``Caller.owner``). Another owner's operator with the same ``id`` is another one."""

    user: UserId
    id: OperatorId
