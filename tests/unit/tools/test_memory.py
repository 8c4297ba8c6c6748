"""The pair of tools that read and write a tenant's memory: what is written is confirmed first, and stands there once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.calls.scope import Scope
from spass.core.errors import AdminRequired, ConfirmTokenExpired, ConfirmTokenInvalid, InvalidRequest
from spass.core.messages import ToolCall
from spass.core.time import now_s
from spass.tenancy.config import MAX_MEMORY_BYTES, GatewayConfig
from spass.tenancy.memory_notes import append_line
from spass.tenancy.settings import Cascade, SettingSource
from spass.testing.faults import inject
from spass.tools import confirm_tokens as confirm
from spass.tools.toolbox import Toolbox
from tests.unit.calls.scripted_provider import make_scope
from tests.unit.rag.conftest import RacingWriters, RagHarness
from tests.unit.tools.fakes import FakeReader, rag_with

pytestmark = pytest.mark.anyio

NOTE = "Ada likes tea."


@dataclass(slots=True)
class ToolUser:
    """A user at one process's tools."""

    scope: Scope
    cascade: Cascade
    box: Toolbox

    async def call(self, name: str, **arguments: Any) -> Any:
        return (await self.box.execute_direct(self.scope, name, arguments)).result

    async def asked(self, note: str = NOTE) -> Mapping[str, Any]:
        """The arguments with the token that the first call answered."""
        return {"note": note, "confirm_token": (await self.call("memory_write", note=note))["confirm_token"]}

    async def memory(self) -> Any:
        return (await self.call("memory_read"))["memory"]


def desk_at(store: TenantStore) -> ToolUser:
    """An administrator of the tenant, for whom the operator's file has a memory, at a process of their own."""
    tenant = {"id": store.tenant, "defaults": {"memory": "The office is in Bonn.\n"}}
    cascade = Cascade(GatewayConfig.model_validate({"tenants": [tenant]}))
    return ToolUser(make_scope(store, admin=True), cascade, Toolbox(rag_with(FakeReader()), cascade))


@pytest.fixture
def store(harness: RagHarness) -> TenantStore:
    return harness.scope.store


@pytest.fixture
def tool_user(store: TenantStore) -> ToolUser:
    return desk_at(store)


async def test_a_note_is_written_in_two_steps_behind_what_the_operator_wrote(tool_user: ToolUser) -> None:
    first = await tool_user.call("memory_write", note=NOTE)
    size = len("The office is in Bonn.\nAda likes tea.")
    assert first["preview"] == {"memory_size_bytes": size, "note": NOTE}
    assert (first["confirm_required"], first["op"], first["expires_in_seconds"]) == (True, "memory_write", 60)
    assert await tool_user.memory() == "The office is in Bonn.\n"
    written = await tool_user.call("memory_write", note=NOTE, confirm_token=first["confirm_token"])
    assert written == {"memory_size_bytes": size}
    assert await tool_user.call("memory_read") == {"memory": "The office is in Bonn.\nAda likes tea.", "memory_size_bytes": size}


async def test_only_an_admin_writes_it_at_either_step_and_all_may_read_it(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.asked()
    bob = replace(tool_user, scope=make_scope(store))
    for arguments in ({"note": NOTE}, confirmed, {"unknown": 1}):
        with pytest.raises(AdminRequired) as refused:
            await bob.call("memory_write", **arguments)
        assert refused.value.param == "name"
        told = await bob.box.execute(bob.scope, ToolCall("c", "memory_write", json.dumps(arguments)), allowed=["memory_write"])
        error = json.loads(told.message.content)["error"]
        assert (error["code"], "administrator" in error["message"]) == ("admin_required", True)
    assert await bob.memory() == "The office is in Bonn.\n"
    assert await tool_user.call("memory_write", **confirmed) == {"memory_size_bytes": 37}


async def test_only_an_admins_model_is_offered_the_tool_that_writes(tool_user: ToolUser, store: TenantStore) -> None:
    def offered(scope: Scope) -> list[str]:
        return [tool.name for tool in tool_user.box.specs(["memory_read", "memory_write"], scope.caller.identity)]

    assert offered(make_scope(store)) == ["memory_read"]
    assert offered(tool_user.scope) == ["memory_read", "memory_write"]


async def test_it_is_in_force_at_once_here_and_read_at_once_everywhere(tool_user: ToolUser, store: TenantStore) -> None:
    before = await tool_user.cascade.effective(store)
    assert before.sources["memory"] is SettingSource.YAML
    await tool_user.call("memory_write", **await tool_user.asked())
    after = await tool_user.cascade.effective(store)
    assert (after.config.memory, after.sources["memory"]) == (f"The office is in Bonn.\n{NOTE}", SettingSource.DB)
    assert await desk_at(store).memory() == after.config.memory


async def test_notes_follow_each_other_and_leave_other_settings_as_they_are(tool_user: ToolUser, store: TenantStore) -> None:
    await tool_user.cascade.change(store, {"memory": "", "rag_top_k": 7})
    assert await tool_user.call("memory_read") == {"memory": None, "memory_size_bytes": 0}
    for note in ("one", "two", "three"):
        await tool_user.call("memory_write", **await tool_user.asked(note))
    assert await tool_user.memory() == "one\ntwo\nthree"
    settings = await desk_at(store).cascade.read(store)
    assert (settings.config.rag_top_k, settings.sources["rag_top_k"]) == (7, SettingSource.DB)
    await tool_user.cascade.change(store, {"memory": None})
    assert await tool_user.memory() == "The office is in Bonn.\n"


async def test_a_token_is_good_once_for_its_note_and_for_a_minute(tool_user: ToolUser, monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed = await tool_user.asked()
    with pytest.raises(ConfirmTokenInvalid):
        await tool_user.call("memory_write", **{**confirmed, "note": "Bob likes tea."})
    await tool_user.call("memory_write", **confirmed)
    with pytest.raises(ConfirmTokenInvalid):
        await tool_user.call("memory_write", **confirmed)
    late = await tool_user.asked("late")
    monkeypatch.setattr(confirm, "now_s", lambda: now_s() + 61)
    with pytest.raises(ConfirmTokenExpired):
        await tool_user.call("memory_write", **late)
    assert await tool_user.memory() == f"The office is in Bonn.\n{NOTE}"


async def test_a_token_used_between_look_and_write_writes_nothing(tool_user: ToolUser, store: TenantStore) -> None:
    redemption = confirm.TokenRedemption(keys.confirm_token(store.tenant, "used"))
    with pytest.raises(ConfirmTokenInvalid):
        await tool_user.cascade.append_memory(store, NOTE, redemption, tool_user.scope.deadline)
    assert await store.table.get(keys.tenant_config(store.tenant)) is None


async def test_who_was_overtaken_writes_behind_the_other(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.asked()
    other = desk_at(store)

    async def notes() -> None:
        await other.call("memory_write", **await other.asked("first"))

    async def sets() -> None:
        await other.cascade.change(store, {"memory": "second", "rag_top_k": 7})

    with inject(RacingWriters(notes, sets)):
        written = await tool_user.call("memory_write", **confirmed)
    assert await tool_user.memory() == f"second\n{NOTE}"
    assert written == {"memory_size_bytes": len(f"second\n{NOTE}")}
    assert (await tool_user.cascade.effective(store)).config.rag_top_k == 7


async def test_whose_memory_was_filled_meanwhile_keeps_the_token(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.asked()

    async def fills() -> None:
        await desk_at(store).cascade.change(store, {"memory": "x" * MAX_MEMORY_BYTES})

    with inject(RacingWriters(fills)), pytest.raises(InvalidRequest):
        await tool_user.call("memory_write", **confirmed)
    await tool_user.cascade.change(store, {"memory": None})
    await tool_user.call("memory_write", **confirmed)
    assert await tool_user.memory() == f"The office is in Bonn.\n{NOTE}"


async def test_a_full_memory_takes_no_note_and_says_what_to_do(tool_user: ToolUser, store: TenantStore) -> None:
    await tool_user.cascade.change(store, {"memory": "ü" * (MAX_MEMORY_BYTES // 2 - 3)})
    confirmed = await tool_user.asked("12345")
    with pytest.raises(InvalidRequest) as caught:
        await tool_user.call("memory_write", note="123456")
    assert caught.value.param == "arguments.note"
    assert "with this note it would have 16385" in caught.value.message
    assert "PUT /v1/tenant/config" in caught.value.message
    assert await tool_user.call("memory_write", **confirmed) == {"memory_size_bytes": MAX_MEMORY_BYTES}
    told = await tool_user.box.execute(tool_user.scope, ToolCall("c", "memory_write", '{"note": "x"}'), allowed=["memory_write"])
    assert json.loads(told.message.content)["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("note", "complaint"),
    [
        ("", "must hold more than blanks"),
        (" \t", "must hold more than blanks"),
        ("one\ntwo", "must be one line"),
        ("one\u2028two", "must be one line"),
        ("a\0b", "must not hold the character NUL"),
        ("ü" * 1025, "must be at most 2048 bytes of UTF-8"),
    ],
)
async def test_a_note_is_one_line_of_words(tool_user: ToolUser, note: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        await tool_user.call("memory_write", note=note)


@pytest.mark.parametrize(
    ("memory", "after"), [(None, "x"), ("", "x"), (" \n", "x"), ("a", "a\nx"), ("a\n\n", "a\nx"), (" a\nb", " a\nb\nx")]
)
def test_a_note_is_a_line_behind_the_others(memory: str | None, after: str) -> None:
    assert append_line(memory, "x") == after


async def test_another_tenants_memory_is_its_own(tool_user: ToolUser, harness: RagHarness) -> None:
    await tool_user.call("memory_write", **await tool_user.asked())
    assert await desk_at(harness.tenant("other").store).memory() == "The office is in Bonn.\n"
