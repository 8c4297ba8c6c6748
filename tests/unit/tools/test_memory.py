"""``memory_read`` and ``memory_write``: a note is confirmed first and written once."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spass.calls.scope import Scope
from spass.core.errors import AdminRequired, ConfirmTokenExpired, ConfirmTokenInvalid, InvalidRequest
from spass.core.messages import ToolCall
from spass.core.time import now_s
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put
from spass.tenancy.config import MAX_MEMORY_BYTES, GatewayConfig
from spass.tenancy.settings import Cascade, SettingSource
from spass.tenancy.stored_settings import append_line
from spass.testing.faults import inject
from spass.tools.confirm_tokens import TokenRedemption
from spass.tools.toolbox import Toolbox
from tests.unit.calls.scripted_provider import make_scope
from tests.unit.rag.conftest import RacingWriters, RagHarness
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio

NOTE = "Ada likes tea."


@dataclass(slots=True)
class ToolUser:
    """A user of the tools of one process."""

    scope: Scope
    cascade: Cascade
    box: Toolbox

    async def call(self, name: str, **arguments: Any) -> Any:
        return (await self.box.execute_direct(self.scope, name, arguments)).body.result

    async def preview(self, note: str = NOTE) -> Mapping[str, Any]:
        """Make the first call, and return the arguments of the second."""
        return {"note": note, "confirm_token": (await self.call("memory_write", note=note))["confirm_token"]}

    async def memory(self) -> Any:
        return (await self.call("memory_read"))["memory"]


def new_process(store: TenantStore, clock: Callable[[], int] = now_s) -> ToolUser:
    """Return an administrator at a new process. The operator's file has a memory for the tenant."""
    tenant = {"id": store.tenant, "defaults": {"memory": "The office is in Bonn.\n"}}
    cascade = Cascade(GatewayConfig.model_validate({"tenants": [tenant]}))
    return ToolUser(make_scope(store, admin=True), cascade, toolbox_of(clock=clock, cascade=cascade))


@pytest.fixture
def store(harness: RagHarness) -> TenantStore:
    return harness.scope.store


@pytest.fixture
def tool_user(store: TenantStore) -> ToolUser:
    return new_process(store)


async def test_a_note_is_appended_in_two_steps_to_the_memory_of_the_file(tool_user: ToolUser) -> None:
    first = await tool_user.call("memory_write", note=NOTE)
    size = len("The office is in Bonn.\nAda likes tea.")
    assert first["preview"] == {"memory_size_bytes": size, "note": NOTE}
    assert (first["confirm_required"], first["op"], first["expires_in_seconds"]) == (True, "memory_write", 60)
    assert await tool_user.memory() == "The office is in Bonn.\n"
    written = await tool_user.call("memory_write", note=NOTE, confirm_token=first["confirm_token"])
    assert written == {"memory_size_bytes": size}
    assert await tool_user.call("memory_read") == {"memory": "The office is in Bonn.\nAda likes tea.", "memory_size_bytes": size}


async def test_only_an_admin_may_write_and_everybody_may_read(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.preview()
    bob = replace(tool_user, scope=make_scope(store))
    for arguments in ({"note": NOTE}, confirmed, {"unknown": 1}):
        with pytest.raises(AdminRequired) as refused:
            await bob.call("memory_write", **arguments)
        assert refused.value.param == "name"
        finished = await bob.box.execute(
            bob.scope, ToolCall("c", "memory_write", json.dumps(arguments)), allowed=["memory_write"]
        )
        error = json.loads(finished.message.content)["error"]
        assert (error["code"], "administrator" in error["message"]) == ("admin_required", True)
    assert await bob.memory() == "The office is in Bonn.\n"
    assert await tool_user.call("memory_write", **confirmed) == {"memory_size_bytes": 37}


async def test_only_an_admins_model_is_offered_memory_write(tool_user: ToolUser, store: TenantStore) -> None:
    def offered(scope: Scope) -> list[str]:
        return [tool.name for tool in tool_user.box.specs(scope, ["memory_read", "memory_write"])]

    assert offered(make_scope(store)) == ["memory_read"]
    assert offered(tool_user.scope) == ["memory_read", "memory_write"]


async def test_a_new_note_is_in_force_here_and_read_by_other_processes(tool_user: ToolUser, store: TenantStore) -> None:
    before = await tool_user.cascade.effective(store)
    assert before.sources["memory"] is SettingSource.YAML
    await tool_user.call("memory_write", **await tool_user.preview())
    after = await tool_user.cascade.effective(store)
    assert (after.config.memory, after.sources["memory"]) == (f"The office is in Bonn.\n{NOTE}", SettingSource.DB)
    assert await new_process(store).memory() == after.config.memory


async def test_notes_are_appended_and_other_settings_stay(tool_user: ToolUser, store: TenantStore) -> None:
    await tool_user.cascade.change(store, {"memory": "", "rag_top_k": 7})
    assert await tool_user.call("memory_read") == {"memory": None, "memory_size_bytes": 0}
    for note in ("one", "two", "three"):
        await tool_user.call("memory_write", **await tool_user.preview(note))
    assert await tool_user.memory() == "one\ntwo\nthree"
    settings = await new_process(store).cascade.read(store)
    assert (settings.config.rag_top_k, settings.sources["rag_top_k"]) == (7, SettingSource.DB)
    await tool_user.cascade.change(store, {"memory": None})
    assert await tool_user.memory() == "The office is in Bonn.\n"


async def test_a_token_is_valid_once_for_its_note_and_for_a_minute(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.preview()
    with pytest.raises(ConfirmTokenInvalid):
        await tool_user.call("memory_write", **{**confirmed, "note": "Bob likes tea."})
    await tool_user.call("memory_write", **confirmed)
    with pytest.raises(ConfirmTokenInvalid):
        await tool_user.call("memory_write", **confirmed)
    late = await tool_user.preview("late")
    with pytest.raises(ConfirmTokenExpired):
        await new_process(store, clock=lambda: now_s() + 61).call("memory_write", **late)
    assert await tool_user.memory() == f"The office is in Bonn.\n{NOTE}"


async def test_a_token_that_is_used_before_the_write_writes_nothing(tool_user: ToolUser, store: TenantStore) -> None:
    redemption = TokenRedemption(Put(keys.used_confirm_token(store.tenant, "token"), {}, ITEM_ABSENT))
    await store.table.write(redemption.mark)
    with pytest.raises(ConfirmTokenInvalid):
        await tool_user.cascade.append_memory(store, NOTE, redemption, tool_user.scope.deadline)
    assert await store.table.get(keys.tenant_config(store.tenant)) is None


async def test_a_writer_that_loses_a_race_appends_to_the_new_memory(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.preview()
    other = new_process(store)

    async def append_note() -> None:
        await other.call("memory_write", **await other.preview("first"))

    async def change_settings() -> None:
        await other.cascade.change(store, {"memory": "second", "rag_top_k": 7})

    with inject(RacingWriters(append_note, change_settings)):
        written = await tool_user.call("memory_write", **confirmed)
    assert await tool_user.memory() == f"second\n{NOTE}"
    assert written == {"memory_size_bytes": len(f"second\n{NOTE}")}
    assert (await tool_user.cascade.effective(store)).config.rag_top_k == 7


async def test_a_write_refused_for_a_full_memory_does_not_use_the_token(tool_user: ToolUser, store: TenantStore) -> None:
    confirmed = await tool_user.preview()

    async def fill_memory() -> None:
        await new_process(store).cascade.change(store, {"memory": "x" * MAX_MEMORY_BYTES})

    with inject(RacingWriters(fill_memory)), pytest.raises(InvalidRequest):
        await tool_user.call("memory_write", **confirmed)
    await tool_user.cascade.change(store, {"memory": None})
    await tool_user.call("memory_write", **confirmed)
    assert await tool_user.memory() == f"The office is in Bonn.\n{NOTE}"


async def test_a_full_memory_refuses_a_note_and_names_the_remedy(tool_user: ToolUser, store: TenantStore) -> None:
    await tool_user.cascade.change(store, {"memory": "ü" * (MAX_MEMORY_BYTES // 2 - 3)})
    confirmed = await tool_user.preview("12345")
    with pytest.raises(InvalidRequest) as caught:
        await tool_user.call("memory_write", note="123456")
    assert caught.value.param == "arguments.note"
    assert "with this note it would have 16385" in caught.value.message
    assert "PUT /v1/tenant/config" in caught.value.message
    assert await tool_user.call("memory_write", **confirmed) == {"memory_size_bytes": MAX_MEMORY_BYTES}
    finished = await tool_user.box.execute(
        tool_user.scope, ToolCall("c", "memory_write", '{"note": "x"}'), allowed=["memory_write"]
    )
    assert json.loads(finished.message.content)["error"]["code"] == "invalid_request"


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
async def test_a_note_must_be_one_line_of_text(tool_user: ToolUser, note: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        await tool_user.call("memory_write", note=note)


@pytest.mark.parametrize(
    ("memory", "after"), [(None, "x"), ("", "x"), (" \n", "x"), ("a", "a\nx"), ("a\n\n", "a\nx"), (" a\nb", " a\nb\nx")]
)
def test_append_line_adds_the_note_as_the_last_line(memory: str | None, after: str) -> None:
    assert append_line(memory, "x") == after


async def test_a_note_does_not_reach_another_tenant(tool_user: ToolUser, harness: RagHarness) -> None:
    await tool_user.call("memory_write", **await tool_user.preview())
    assert await new_process(harness.scope_of("other").store).memory() == "The office is in Bonn.\n"
