"""A confirm token permits one call of one caller, once, within a minute."""

import base64
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.calls.scope import Scope
from spass.core.errors import ConfirmTokenExpired, ConfirmTokenInvalid
from spass.core.ids import UserId
from spass.core.messages import Json
from spass.core.time import now_s
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.keys import confirm_secret
from spass.store.table import TransactionFailed
from spass.testing.faults import FaultPlan, inject
from spass.tools.confirm_tokens import CONFIRM_SECONDS, ConfirmedOperation, ConfirmTokens
from tests.unit.rag.conftest import RagHarness

pytestmark = pytest.mark.anyio

T = TypeVar("T")

ARGUMENTS: Final[Mapping[str, Json]] = {
    "index_id": "berlin",
    "doc_id": "gate",
    "text": "neu",
    "metadata": {"a": 1, "b": [2, None]},
}
PATCH = ConfirmedOperation("rag_doc_patch", ARGUMENTS)
RESULT: Final = True
"""The result of the confirmed call. Its value makes no difference in these tests."""

text = st.text(st.characters(codec="utf-8"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
operations = st.builds(
    ConfirmedOperation,
    op=st.sampled_from(["rag_index_create", "rag_doc_append", "rag_doc_patch", "rag_doc_delete", "memory_write"]),
    arguments=st.dictionaries(text, json_values, max_size=3),
)


@pytest.fixture
def scope(harness: RagHarness) -> Scope:
    return for_user(harness.scope, "ada")


def for_user(scope: Scope, user: str | None) -> Scope:
    return replace(scope, caller=replace(scope.caller, user=UserId(user) if user is not None else None))


def reverse_members(value: Json) -> Json:
    """Return the same JSON with the members of every object in the opposite order."""
    if isinstance(value, dict):
        return {name: reverse_members(inner) for name, inner in reversed(value.items())}
    return [*map(reverse_members, value)] if isinstance(value, list) else value


async def is_accepted(scope: Scope, operation: ConfirmedOperation, token: str) -> bool:
    try:
        await ConfirmTokens().redeem(scope, operation, token)
    except ConfirmTokenInvalid:
        return False
    return True


@given(one=operations, other=operations)
async def test_a_token_is_refused_if_any_field_of_the_call_differs(
    aws: Aws, one: ConfirmedOperation, other: ConfirmedOperation
) -> None:
    scope = RagHarness(aws).scope
    token = await ConfirmTokens().issue(scope, one)
    assert await is_accepted(scope, one, token)
    for field in fields(ConfirmedOperation):
        before, after = getattr(one, field.name), getattr(other, field.name)
        same = json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)
        assert await is_accepted(scope, replace(one, **{field.name: after}), token) is same, field.name


@given(operation=operations)
async def test_a_token_is_accepted_if_only_the_order_of_json_members_differs(aws: Aws, operation: ConfirmedOperation) -> None:
    scope, arguments = RagHarness(aws).scope, reverse_members(operation.arguments)
    assert isinstance(arguments, dict)
    token = await ConfirmTokens().issue(scope, operation)
    assert await is_accepted(scope, replace(operation, arguments=arguments), token)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "neu "},
        {"index_id": "bonn"},
        {"doc_id": "tower"},
        {"metadata": {"a": True, "b": [2, None]}},
        {"metadata": {"a": 1, "b": [None, 2]}},
    ],
)
async def test_a_token_is_refused_if_one_argument_differs(scope: Scope, change: dict[str, Json]) -> None:
    token = await ConfirmTokens().issue(scope, PATCH)
    assert not await is_accepted(scope, replace(PATCH, arguments={**ARGUMENTS, **change}), token)


async def test_a_token_is_refused_for_another_user_or_tenant(harness: RagHarness, scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    token = await confirm_tokens.issue(scope, PATCH)
    without_user = for_user(scope, None)
    other_tenant = for_user(harness.scope_of("other"), "ada")
    for other_scope in (for_user(scope, "bob"), without_user, other_tenant):
        with pytest.raises(ConfirmTokenInvalid):
            await confirm_tokens.redeem(other_scope, PATCH, token)
    token_without_user = await confirm_tokens.issue(without_user, PATCH)
    for user in ("ada", "null"):
        with pytest.raises(ConfirmTokenInvalid):
            await confirm_tokens.redeem(for_user(scope, user), PATCH, token_without_user)
    await confirm_tokens.redeem(scope, PATCH, token)


def test_the_fingerprint_includes_the_tenant(harness: RagHarness, scope: Scope) -> None:
    other = for_user(harness.scope_of("other"), "ada")
    assert PATCH.fingerprint(other.caller) != PATCH.fingerprint(scope.caller)
    assert len(PATCH.fingerprint(scope.caller)) == 32


async def test_a_token_is_accepted_once(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    token = await confirm_tokens.issue(scope, PATCH)
    first, second = [await confirm_tokens.redeem(scope, PATCH, token) for _ in range(2)]
    await scope.store.table.transact(await first.writes(RESULT), token="one")
    with pytest.raises(ConfirmTokenInvalid):
        await confirm_tokens.redeem(scope, PATCH, token)
    with pytest.raises(TransactionFailed):
        await scope.store.table.transact(await second.writes(RESULT), token="two")
    assert isinstance(second.refusal(), ConfirmTokenInvalid)


async def test_the_mark_of_a_used_token_expires_an_hour_after_the_token(scope: Scope) -> None:
    confirm_tokens, issued_at = ConfirmTokens(), now_s()
    redemption = await confirm_tokens.redeem(scope, PATCH, await confirm_tokens.issue(scope, PATCH))
    (write,) = await redemption.writes(RESULT)
    expires_at = redemption.mark.attributes["ttl"]
    assert write == redemption.mark
    assert isinstance(expires_at, int)
    assert expires_at >= issued_at + CONFIRM_SECONDS + 3600


async def test_a_token_is_issued_without_a_write(scope: Scope) -> None:
    """If a token were written when it is issued, a delayed write could make a used token valid again."""
    confirm_tokens = ConfirmTokens()
    # The first token of a tenant also stores the tenant's key.
    await confirm_tokens.issue(scope, PATCH)
    with inject(FaultPlan()) as plan:
        await confirm_tokens.issue(scope, PATCH)
    assert plan.calls == []


async def test_a_token_is_bound_to_the_state_of_the_preview(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    redemption = await confirm_tokens.redeem(scope, PATCH, await confirm_tokens.issue(scope, PATCH, "state-1"))
    assert redemption.allows("state-1")
    assert not redemption.allows("state-2")
    assert not redemption.allows("")


@pytest.mark.parametrize(("seconds", "valid"), [(0, True), (59, True), (60, True), (61, False), (100_000, False)])
async def test_a_token_is_valid_for_a_minute(scope: Scope, seconds: int, valid: bool) -> None:
    token = await ConfirmTokens(clock=lambda: 1_000).issue(scope, PATCH)
    confirm_tokens = ConfirmTokens(clock=lambda: 1_000 + seconds)
    if valid:
        await confirm_tokens.redeem(scope, PATCH, token)
        return
    with pytest.raises(ConfirmTokenExpired):
        await confirm_tokens.redeem(scope, PATCH, token)
    with pytest.raises(ConfirmTokenInvalid):
        await confirm_tokens.redeem(for_user(scope, "bob"), PATCH, token)


async def test_a_changed_expiry_is_refused(scope: Scope) -> None:
    token = base64.urlsafe_b64decode(await ConfirmTokens(clock=lambda: 1_000).issue(scope, PATCH))
    changed = base64.urlsafe_b64encode((9_000).to_bytes(6, "big") + token[6:]).decode()
    with pytest.raises(ConfirmTokenInvalid):
        await ConfirmTokens(clock=lambda: 2_000).redeem(scope, PATCH, changed)


async def test_a_token_with_a_changed_or_missing_character_is_refused(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    token = await confirm_tokens.issue(scope, PATCH)
    changed = [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token))]
    shorter = [token[:at] + token[at + 1 :] for at in range(len(token))]
    others = [
        token + "=",
        token + "\n",
        " " + token,
        token + token,
        token.swapcase(),
        token.replace(token[5], "ü"),
        token[:-1] + "+",
    ]
    for wrong in [*changed, *shorter, *others]:
        with pytest.raises(ConfirmTokenInvalid):
            await confirm_tokens.redeem(scope, PATCH, wrong)


# A token has 54 bytes before the encoding.
@given(
    random_text=st.text(max_size=80) | st.binary(min_size=54, max_size=54).map(lambda raw: base64.urlsafe_b64encode(raw).decode())
)
async def test_random_text_is_refused(aws: Aws, random_text: str) -> None:
    with pytest.raises(ConfirmTokenInvalid):
        await ConfirmTokens().redeem(RagHarness(aws).scope, PATCH, random_text)


async def test_all_processes_use_the_same_key_for_a_tenant(harness: RagHarness, scope: Scope) -> None:
    processes = [ConfirmTokens() for _ in range(3)]
    tokens = [await process.issue(scope, PATCH) for process in processes]
    for process in (*processes, ConfirmTokens()):
        for token in tokens:
            await process.redeem(scope, PATCH, token)
    other = harness.scope_of("other")
    await processes[0].issue(other, PATCH)
    stored = [await one.store.table.get(confirm_secret(one.store.tenant)) for one in (scope, other)]
    assert all(item is not None and isinstance(item["key"], bytes) and len(item["key"]) == 32 for item in stored)
    assert stored[0] != stored[1]


class RacingProcess(FaultPlan):
    """Another process, which issues a token just before the first write."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        self.token = ""

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "PutItem" and not self.token:
            with inject(FaultPlan()):
                self.token = await ConfirmTokens().issue(self.scope, PATCH)
        return await super().around(call, run)


async def test_two_processes_that_create_a_key_concurrently_both_use_the_first_key(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    rival = RacingProcess(scope)
    with inject(rival):
        token = await confirm_tokens.issue(scope, PATCH)
    for process in (confirm_tokens, ConfirmTokens()):
        await process.redeem(scope, PATCH, token)
        await process.redeem(scope, PATCH, rival.token)


async def test_two_tokens_for_the_same_call_differ(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    assert len({await confirm_tokens.issue(scope, PATCH) for _ in range(20)}) == 20
