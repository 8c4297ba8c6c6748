"""The parameters of the routes of operators and of managed agents."""

from typing import Annotated

from fastapi import Path

from spass.core.errors import AgentNotFound, RunNotFound
from spass.core.ids import OPERATOR_ID, ManagedAgentId, OperatorId, RunId, id_pattern
from spass.managed.records import NO_AGENT, NO_RUN
from spass.web.routing import require_form

# The caller chooses these ids, so a malformed one gets a 400.
OperatorParameter = Annotated[OperatorId, Path(pattern=OPERATOR_ID, description="An operator's id.")]
ManagedAgentParameter = Annotated[
    ManagedAgentId,
    Path(description="A managed agent's id."),
    require_form(id_pattern("agt"), AgentNotFound, NO_AGENT, "agent_id"),
]
RunParameter = Annotated[
    RunId,
    Path(description="A run's id."),
    require_form(id_pattern("run"), RunNotFound, NO_RUN, "run_id"),
]
