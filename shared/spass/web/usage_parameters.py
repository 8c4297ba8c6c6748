"""The parameters of the routes of usage and audit: an agent, days, a grouping, a request."""

import re
from datetime import date
from typing import Annotated, Final

from fastapi import Depends, Path, Query
from starlette.requests import Request

from spass.core.errors import AdminRequired, RequestNotFound
from spass.core.ids import AGENT_NAME, AgentName, RequestId, id_pattern
from spass.metering.usage import GroupBy, UsageQuery
from spass.web.exchange import get_exchange
from spass.web.routing import exact_form, reject_repeated, require_form

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


Day = Annotated[date | None, exact_form(_DAY, "day", "must be a day such as 2026-04-30")]
AgentQuery = Annotated[str | None, Query(pattern=f"^{AGENT_NAME}$", description="Only calls of this agent.")]


async def _usage_query(
    request: Request,
    group_by: Annotated[GroupBy, Query(description="The grouping of the sums; `user` needs an admin's token.")] = "agent",
    agent: AgentQuery = None,
    first: Annotated[Day, Query(alias="from", description="The first day, in UTC.")] = None,
    last: Annotated[Day, Query(alias="to", description="The last day, in UTC.")] = None,
) -> UsageQuery:
    reject_repeated(request, ("group_by", "agent", "from", "to"))
    if group_by == "user" and not get_exchange(request).scope.caller.identity.admin:
        raise AdminRequired("Usage by user needs a token that gateway.yaml marks as admin.", param="group_by")
    return UsageQuery(group_by, None if agent is None else AgentName(agent), first, last)


async def _reset_agent(request: Request, agent: AgentQuery = None) -> AgentName | None:
    """Return the agent whose counters to reset, None for all."""
    reject_repeated(request, ("agent",))
    return None if agent is None else AgentName(agent)


UsageReportQuery = Annotated[UsageQuery, Depends(_usage_query)]
ResetAgent = Annotated[AgentName | None, Depends(_reset_agent)]
OuterRequestId = Annotated[
    RequestId,
    Path(description="The value of SPASS-Request-Id in the answer."),
    require_form(id_pattern("req"), RequestNotFound, "No calls of such a request are recorded.", "request_id"),
]
