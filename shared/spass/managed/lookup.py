"""Read managed agents, and check what an agent accepts now."""

from typing import Final

from spass.core.errors import AgentNotFound, AgentPaused, RunNotFound, SessionBusy
from spass.core.ids import ManagedAgentId, UserId
from spass.managed.records import ManagedAgent, Run, RunStatus
from spass.store import keys
from spass.store.codec import decode
from spass.store.leases import RETRY_SECONDS
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, OneOf

IS_OPEN: Final = OneOf("status", [RunStatus.QUEUED.value, RunStatus.RUNNING.value])
"""The condition on a run's item that the run has not ended."""
NO_AGENT: Final = "You have no such managed agent. It belongs to the user of SPASS-User-Id, or without that header to the token."
"""The message about an agent that does not exist or belongs to another owner: both read the same."""
NO_RUN: Final = "This agent has no such run. GET /v1/managed-agents/{agent_id}/runs lists its runs."


async def find_agent(store: TenantStore, agent: ManagedAgentId) -> ManagedAgent | None:
    """Return the agent, also while it is being deleted, or None if there is none. This does not check the owner: it is for jobs.

    Raises:
        StorageUnavailable: the table does not answer.
    """
    item = await store.table.get(keys.managed_agent(store.tenant, agent))
    return decode(ManagedAgent, item) if item is not None else None


async def read_agent(store: TenantStore, owner: UserId, agent: ManagedAgentId) -> ManagedAgent:
    """Return an agent of ``owner``.

    Raises:
        AgentNotFound: the owner has no such agent, or it was deleted.
        StorageUnavailable: the table does not answer.
    """
    found = await find_agent(store, agent)
    if found is None or found.owner != owner or found.deleted_at is not None:
        raise agent_not_found()
    return found


def current_agent(item: Item | None) -> ManagedAgent:
    """Return the agent in its newest item, for a writer whose condition failed.

    Raises:
        AgentNotFound: it was deleted.
    """
    if item is None or "deleted_at" in item:
        raise agent_not_found()
    return decode(ManagedAgent, item)


def check_not_paused(agent: ManagedAgent) -> None:
    """Check that the agent takes messages and runs.

    Raises:
        AgentPaused: it is paused.
    """
    if agent.paused:
        raise AgentPaused('This agent is paused. PATCH it with {"paused": false} to continue it.')


def run_key(store: TenantStore, run: Run) -> keys.Key:
    return keys.managed_run(store.tenant, run.agent_id, run.id)


def run_active(agent: ManagedAgent) -> SessionBusy:
    """Return the error of a request that an active run of ``agent`` rules out."""
    return SessionBusy(
        f"The run {agent.active_run} of this agent is active; try again when it has ended, or follow or stop it.",
        details={"run_id": agent.active_run},
        retry_after=RETRY_SECONDS,
    )


def agent_not_found() -> AgentNotFound:
    return AgentNotFound(NO_AGENT)


def run_not_found() -> RunNotFound:
    return RunNotFound(NO_RUN)
