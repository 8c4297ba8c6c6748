"""A tenant's own limits: tokens a minute and money a month, asked before a model is called and settled after."""

from spass.calls.scope import Scope
from spass.core.cost import Cost
from spass.core.messages import TokenUsage
from spass.tenancy.config import ModelConfig
from spass.tenancy.settings import Cascade


class Admitted:
    """A call that may be made."""

    async def settle(self, usage: TokenUsage, cost: Cost) -> None:
        """What it really took takes the place of what was reserved. Never raises."""


class Admission:
    """Lets calls through, or not. One for the process."""

    def __init__(self, cascade: Cascade) -> None:
        self._cascade = cascade

    async def admit(self, scope: Scope, model: ModelConfig, expected: TokenUsage) -> Admitted:
        """Reserves what a call of ``model`` is ``expected`` to take. A tenant without limits costs nothing.

        Raises:
            RateLimited, BudgetExceeded: the tenant has no room for it; ``retry_after`` says when it will.
        """
        return Admitted()
