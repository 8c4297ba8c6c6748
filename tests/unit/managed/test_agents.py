"""Managed agents are created, listed and changed by their owner alone, and nothing wrong is stored."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from spass.core.errors import (
    AgentNotFound,
    InternalError,
    InvalidRequest,
    ModelNotAllowed,
    ModelNotFound,
    NoBackendAvailable,
    SpassError,
    StorageUnavailable,
    ToolNotFound,
)
from spass.core.ids import ManagedAgentId
from spass.managed.body import MAX_CONFIG_BYTES, CreateManagedAgent, PatchManagedAgent, RunManagedAgent, SendMessage
from spass.managed.records import Schedule
from spass.managed.responses import ManagedAgentView
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.managed.owned_agents import OwnedAgents

pytestmark = pytest.mark.anyio

HOURLY = {"expression": "rate(1 hour)", "input": "Look around."}


async def test_an_agent_is_read_as_it_was_created(owned: OwnedAgents) -> None:
    agent = await owned.create(
        agent="orchestrator",
        model="small",
        tools=["calculator"],
        system_prompt="Be brief.",
        params={"temperature": 0.25, "max_turns": 3},
        schedule=HOURLY,
    )
    view = ManagedAgentView.of(await owned.agents.get(owned.scope(), agent.id)).to_dict()
    assert view == {
        "id": agent.id,
        "name": "helper",
        "agent": "orchestrator",
        "model": "small",
        "tools": ["calculator"],
        "system_prompt": "Be brief.",
        "params": {"temperature": 0.25, "max_turns": 3},
        "schedule": {"expression": "rate(1 hour)", "timezone": "UTC", "input": "Look around.", "enabled": True},
        "status": "idle",
        "error": None,
        "created_at": "2027-01-15T08:00:01.000Z",
        "updated_at": "2027-01-15T08:00:01.000Z",
    }


async def test_the_agent_of_a_file_has_no_values_of_its_own(owned: OwnedAgents) -> None:
    agent = await owned.create(agent="plain")
    assert (agent.model, agent.tools, agent.system_prompt, agent.params) == (None, None, None, None)
    assert owned.agents.check(owned.scope(), agent).name == "plain"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"agent": "nobody"}, AgentNotFound),
        ({"model": "unknown"}, ModelNotFound),
        ({"model": "dear"}, ModelNotAllowed),
        ({"agent": "orchestrator", "tools": ["hammer"]}, ToolNotFound),
        ({"params": {"temperature": "hot"}}, InvalidRequest),
        ({"params": {"warmth": 1}}, InvalidRequest),
        ({"agent": "operative", "params": {"operator_id": "mine"}}, InvalidRequest),
        ({"agent": "plain", "model": "small"}, InvalidRequest),
        ({"schedule": {"expression": "cron(* * * * *)"}}, InvalidRequest),
        ({"system_prompt": "x" * 200_000, "schedule": {**HOURLY, "input": "y" * 200_000}}, InvalidRequest),
    ],
)
async def test_wrong_values_are_refused_and_nothing_is_stored(
    owned: OwnedAgents, values: dict[str, Any], error: type[SpassError]
) -> None:
    scope = owned.scope(models=("small", "orphan"))
    with pytest.raises(error):
        await owned.create(scope, **values)
    assert owned.stored() == []
    agent = await owned.create()
    before = owned.stored()
    changes = {name: value for name, value in values.items() if name != "agent"}
    if "agent" not in values:
        with pytest.raises(error):
            await owned.patch(agent, owned.scope(models=("small", "orphan")), **changes)
    assert owned.stored() == before
    assert owned.schedules.entries == {}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "a"},
        {"agent": "simple"},
        {"name": "", "agent": "simple"},
        {"name": "  ", "agent": "simple"},
        {"name": "x" * 129, "agent": "simple"},
        {"name": 1, "agent": "simple"},
        {"name": "a", "agent": "simple", "paused": True},
        {"name": "a", "agent": "simple", "tools": ["a", "a"]},
        {"name": "a", "agent": "simple", "schedule": {}},
        {"name": "a", "agent": "simple", "schedule": {"expression": "rate(1 hour)", "input": " "}},
        {"name": "a", "agent": "simple", "schedule": {"expression": "rate(1 hour)", "enabled": 1}},
    ],
)
def test_a_malformed_agent_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CreateManagedAgent.model_validate(body)


@pytest.mark.parametrize("body", [{"id": "agt_1"}, {"agent": "simple"}, {"name": None}, {"paused": None}, {"paused": "yes"}])
def test_id_and_agent_cannot_be_changed_and_name_and_pause_not_removed(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PatchManagedAgent.model_validate(body)


@pytest.mark.parametrize(
    "body", [{}, {"content": ""}, {"content": " \n"}, {"content": "ä" * 131_073}, {"content": "a\0"}, {"text": "a"}]
)
def test_a_blank_or_huge_message_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SendMessage.model_validate(body)


def test_a_run_needs_no_input_but_a_blank_one_is_refused() -> None:
    assert RunManagedAgent.model_validate({}).input is None
    with pytest.raises(ValidationError):
        RunManagedAgent.model_validate({"input": " "})


async def test_values_up_to_the_limit_fit_in_an_item(owned: OwnedAgents) -> None:
    room = MAX_CONFIG_BYTES - 200_000 - 200
    agent = await owned.create(system_prompt="x" * 200_000, schedule={**HOURLY, "input": "y" * room})
    assert (await owned.agents.get(owned.scope(), agent.id)).schedule == agent.schedule


async def test_a_patch_changes_what_it_names_and_null_removes(owned: OwnedAgents) -> None:
    agent = await owned.create(model="small", system_prompt="Be brief.", params={"temperature": 0.5}, schedule=HOURLY)
    changed = await owned.patch(agent, name="other", system_prompt=None, schedule=None, params={"temperature": 1.0})
    assert changed == await owned.agents.get(owned.scope(), agent.id)
    assert (changed.name, changed.model, changed.system_prompt, changed.params, changed.schedule) == (
        "other",
        "small",
        None,
        {"temperature": 1.0},
        None,
    )
    assert (changed.created_at, changed.updated_at > agent.updated_at) == (agent.created_at, True)


async def test_a_paused_agent_says_so_until_it_continues(owned: OwnedAgents) -> None:
    agent = await owned.create()
    assert (await owned.patch(agent, paused=True)).status == "paused"
    assert (await owned.patch(agent, paused=False)).status == "idle"


async def test_ticks_act_as_the_token_that_last_wrote_what_a_run_uses(owned: OwnedAgents) -> None:
    agent = await owned.create(owned.scope(token="first"))
    assert (await owned.patch(agent, owned.scope(token="second"), paused=True, name="x")).token_id == "first"
    assert (await owned.patch(agent, owned.scope(token="third"), system_prompt="Hi.")).token_id == "third"


async def test_patches_that_race_all_take_effect(owned: OwnedAgents) -> None:
    agent = await owned.create()
    changes: list[dict[str, Any]] = [
        {"name": "n"},
        {"system_prompt": "s"},
        {"paused": True},
        {"model": "dear"},
        {"schedule": HOURLY},
    ]
    await asyncio.gather(*(owned.patch(agent, **change) for change in changes))
    found = await owned.agents.get(owned.scope(), agent.id)
    assert (found.name, found.system_prompt, found.paused, found.model, found.version) == ("n", "s", True, "dear", 6)
    assert owned.schedules.entries == {agent.id: found.schedule}


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE])
@pytest.mark.parametrize("at", range(2))
async def test_a_patch_takes_effect_once_although_a_call_failed(owned: OwnedAgents, fault: Fault, at: int) -> None:
    agent = await owned.create()
    with inject(FaultPlan(fault, at, times=2)):
        try:
            await owned.patch(agent, name="new")
        except SpassError:
            assert (fault, at) != (Fault.REPEATED, 1)
            await owned.patch(agent, name="new")
    found = await owned.agents.get(owned.scope(), agent.id)
    assert found.name == "new"
    assert found.version in (2, 3)


async def test_another_owners_agent_is_not_found(owned: OwnedAgents) -> None:
    agent = await owned.create(owned.scope("ana"))
    of_token = await owned.create(owned.scope(None, token="token-1"))
    strangers = [owned.scope("bob"), owned.scope("ana", tenant="demo-2"), owned.scope(None), owned.scope(None, token="token-2")]
    for stranger in strangers:
        with pytest.raises(AgentNotFound):
            await owned.agents.get(stranger, agent.id)
        with pytest.raises(AgentNotFound):
            await owned.patch(agent, stranger, name="mine")
    assert [view.id for view in await owned.listed(owned.scope("ana", token="token-9"))] == [agent.id]
    assert [view.id for view in await owned.listed(owned.scope(None))] == [of_token.id]
    assert await owned.listed(owned.scope("bob")) == []
    with pytest.raises(AgentNotFound):
        await owned.agents.get(owned.scope(), ManagedAgentId("agt_" + "0" * 26))


async def test_a_list_is_newest_first_paged_and_its_cursor_belongs_to_its_owner(owned: OwnedAgents) -> None:
    agents = [await owned.create(name=str(number)) for number in range(40)]
    await owned.create(owned.scope("bob"))
    expected = [agent.id for agent in reversed(agents)]
    for limit in (1, 16, 17, 40, 100):
        assert [view.id for view in await owned.listed(owned.scope(), limit)] == expected
    page = await owned.agents.page(owned.scope(), None, 7)
    for stranger in (owned.scope("bob"), owned.scope(None), owned.scope("ana", tenant="demo-2")):
        with pytest.raises(InvalidRequest):
            await owned.agents.page(stranger, page.next_cursor, 7)


async def test_a_list_page_ends_at_four_mebibytes(owned: OwnedAgents) -> None:
    agents = [await owned.create(system_prompt="x" * 250_000) for _ in range(20)]
    page = await owned.agents.page(owned.scope(), None, 100)
    assert 10 < len(page.agents) < 20
    assert len(page.to_json()) < 4 * 1024 * 1024
    assert len(await owned.listed(owned.scope())) == len(agents)


async def test_a_model_without_a_backend_is_stored_but_cannot_run(owned: OwnedAgents) -> None:
    agent = await owned.create(model="orphan")
    with pytest.raises(NoBackendAvailable):
        owned.agents.check(owned.scope(), agent)
    with pytest.raises(ModelNotAllowed):
        owned.agents.check(owned.scope(models=("small",)), agent)


@pytest.mark.parametrize("error", [StorageUnavailable("no answer"), InternalError("refused")])
async def test_the_table_is_written_before_the_schedulers_entry(owned: OwnedAgents, error: SpassError) -> None:
    owned.schedules.fails, owned.schedules.error = True, error
    agent = await owned.create(schedule=HOURLY)
    assert agent.schedule == Schedule("rate(1 hour)", "UTC", "Look around.", True)
    assert [item["sk"] for item in owned.stored() if "OPENWORK" in str(item["pk"])] == [f"SCHEDULE#{agent.id}"]
    await owned.patch(agent, name="other")
    owned.schedules.fails = False
    await owned.patch(agent, schedule={"expression": "rate(2 hours)"})
    assert owned.schedules.entries == {agent.id: Schedule("rate(2 hours)")}


@pytest.mark.parametrize("fault", [*Fault])
@pytest.mark.parametrize("at", range(2))
async def test_after_any_fault_an_agent_is_whole_or_absent(owned: OwnedAgents, fault: Fault, at: int) -> None:
    try:
        with inject(FaultPlan(fault, at, times=2)):
            await owned.create()
    except (Crash, SpassError):
        pass
    listed = await owned.listed(owned.scope())
    stored = [item["id"] for item in owned.stored() if item["sk"] == "AGENT"]
    assert [view.id for view in listed] == stored
    assert len(stored) <= 1
