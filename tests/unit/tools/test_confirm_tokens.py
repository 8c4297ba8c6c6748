"""A confirm token is good for one call, of one caller, once, for a minute, and for nothing else."""

import base64
import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.aws.invocation import AwsCall
from spass.aws.keys import confirm_secret
from spass.calls.scope import Scope
from spass.core.errors import ConfirmTokenExpired, ConfirmTokenInvalid
from spass.core.ids import DocumentId, IndexId, UserId
from spass.core.messages import Json
from spass.core.time import now_s
from spass.testing.faults import FaultPlan, inject
from spass.tools import confirm_tokens as confirm
from spass.tools.confirm_tokens import ConfirmedOperation, ConfirmTokens
from tests.unit.rag.conftest import RagHarness

pytestmark = pytest.mark.anyio

T = TypeVar("T")

PATCH = ConfirmedOperation(
    "rag_doc_patch", IndexId("berlin"), DocumentId("gate"), {"text": "neu", "metadata": {"a": 1, "b": [2, None]}}
)

text = st.text(st.characters(codec="utf-8"), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
operations = st.builds(
    ConfirmedOperation,
    op=st.sampled_from(["rag_index_create", "rag_doc_append", "rag_doc_patch", "rag_doc_delete", "memory_write"]),
    index=st.none() | st.sampled_from("abc").map(IndexId),
    document=st.none() | st.sampled_from("abc").map(DocumentId),
    body=st.dictionaries(text, plain, max_size=3),
)


@pytest.fixture
def scope(harness: RagHarness) -> Scope:
    return for_user(harness.scope, "ada")


def for_user(scope: Scope, user: str | None) -> Scope:
    return replace(scope, caller=replace(scope.caller, user=UserId(user) if user is not None else None))


def shuffled(value: Json) -> Json:
    """The same JSON, every object's members in the opposite order."""
    if isinstance(value, dict):
        return {name: shuffled(inner) for name, inner in reversed(value.items())}
    return [*map(shuffled, value)] if isinstance(value, list) else value


async def fits(scope: Scope, operation: ConfirmedOperation, token: str) -> bool:
    """Whether the token is taken for the operation."""
    try:
        await ConfirmTokens().redeem(scope, operation, token)
    except ConfirmTokenInvalid:
        return False
    return True


@given(one=operations, other=operations)
async def test_a_token_fails_for_every_single_field_changed(aws: Aws, one: ConfirmedOperation, other: ConfirmedOperation) -> None:
    scope = RagHarness(aws).scope
    token = await ConfirmTokens().issue(scope, one)
    assert await fits(scope, one, token)
    for field in fields(ConfirmedOperation):
        before, after = getattr(one, field.name), getattr(other, field.name)
        same = json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)
        assert await fits(scope, replace(one, **{field.name: after}), token) is same, field.name


@given(operation=operations)
async def test_the_order_of_members_makes_no_difference(aws: Aws, operation: ConfirmedOperation) -> None:
    scope, body = RagHarness(aws).scope, shuffled(operation.body)
    assert isinstance(body, dict)
    assert await fits(scope, replace(operation, body=body), await ConfirmTokens().issue(scope, operation))


@pytest.mark.parametrize(
    "changed", [{"text": "neu "}, {"metadata": {"a": True, "b": [2, None]}}, {"metadata": {"a": 1, "b": [None, 2]}}]
)
async def test_a_token_fails_for_every_single_value_changed_inside(scope: Scope, changed: dict[str, Json]) -> None:
    token = await ConfirmTokens().issue(scope, PATCH)
    assert not await fits(scope, replace(PATCH, body={**PATCH.body, **changed}), token)


async def test_a_token_is_its_callers_alone(harness: RagHarness, scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    token = await confirm_tokens.issue(scope, PATCH)
    nobody = for_user(scope, None)
    for stranger in (for_user(scope, "bob"), nobody, for_user(scope, "null"), for_user(harness.tenant("other"), "ada")):
        with pytest.raises(ConfirmTokenInvalid):
            await confirm_tokens.redeem(stranger, PATCH, token)
    with pytest.raises(ConfirmTokenInvalid):
        await confirm_tokens.redeem(scope, PATCH, await confirm_tokens.issue(nobody, PATCH))
    await confirm_tokens.redeem(scope, PATCH, token)


def test_what_is_signed_names_the_tenant_too_whoever_has_its_key(harness: RagHarness, scope: Scope) -> None:
    other = for_user(harness.tenant("other"), "ada")
    assert PATCH.fingerprint(other.caller) != PATCH.fingerprint(scope.caller)
    assert len(PATCH.fingerprint(scope.caller)) == 32


async def test_a_token_is_good_once(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    token = await confirm_tokens.issue(scope, PATCH)
    first, second = [await confirm_tokens.redeem(scope, PATCH, token) for _ in range(2)]
    await scope.store.table.transact(await first.writes(True), token="one")
    with pytest.raises(ConfirmTokenInvalid):
        await confirm_tokens.redeem(scope, PATCH, token)
    assert second == first
    assert isinstance(second.refusal(), ConfirmTokenInvalid)


@pytest.mark.parametrize(("seconds", "good"), [(0, True), (59, True), (60, True), (61, False), (100_000, False)])
async def test_a_token_is_good_for_a_minute(scope: Scope, monkeypatch: pytest.MonkeyPatch, seconds: int, good: bool) -> None:
    confirm_tokens, issued = ConfirmTokens(), now_s()
    monkeypatch.setattr(confirm, "now_s", lambda: issued)
    token = await confirm_tokens.issue(scope, PATCH)
    monkeypatch.setattr(confirm, "now_s", lambda: issued + seconds)
    if good:
        await confirm_tokens.redeem(scope, PATCH, token)
        return
    with pytest.raises(ConfirmTokenExpired):
        await confirm_tokens.redeem(scope, PATCH, token)
    with pytest.raises(ConfirmTokenInvalid):
        await confirm_tokens.redeem(for_user(scope, "bob"), PATCH, token)


async def test_an_expiry_cannot_be_put_off(scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    confirm_tokens, issued = ConfirmTokens(), now_s()
    signed = base64.urlsafe_b64decode(await confirm_tokens.issue(scope, PATCH))
    later = base64.urlsafe_b64encode((issued + 1000).to_bytes(6, "big") + signed[6:]).decode()
    monkeypatch.setattr(confirm, "now_s", lambda: issued + 100)
    with pytest.raises(ConfirmTokenInvalid):
        await confirm_tokens.redeem(scope, PATCH, later)


async def test_a_token_with_any_character_changed_or_missing_is_none(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    token = await confirm_tokens.issue(scope, PATCH)
    changed = [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token))]
    shorter = [token[:at] + token[at + 1 :] for at in range(len(token))]
    written = [
        token + "=",
        token + "\n",
        " " + token,
        token + token,
        token.swapcase(),
        token.replace(token[5], "ü"),
        token[:-1] + "+",
    ]
    for wrong in [*changed, *shorter, *written]:
        with pytest.raises(ConfirmTokenInvalid):
            await confirm_tokens.redeem(scope, PATCH, wrong)


@given(garbage=st.text(max_size=80) | st.binary(min_size=54, max_size=54).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
async def test_garbage_is_no_token(aws: Aws, garbage: str) -> None:
    with pytest.raises(ConfirmTokenInvalid):
        await ConfirmTokens().redeem(RagHarness(aws).scope, PATCH, garbage)


async def test_every_process_of_a_tenant_has_the_same_key(harness: RagHarness, scope: Scope) -> None:
    processes = [ConfirmTokens() for _ in range(3)]
    tokens = [await process.issue(scope, PATCH) for process in processes]
    for process in (*processes, ConfirmTokens()):
        for token in tokens:
            await process.redeem(scope, PATCH, token)
    other = harness.tenant("other")
    await processes[0].issue(other, PATCH)
    stored = [await one.store.table.get(confirm_secret(one.store.tenant)) for one in (scope, other)]
    assert all(item is not None and isinstance(item["key"], bytes) and len(item["key"]) == 32 for item in stored)
    assert stored[0] != stored[1]


class RacingProcess(FaultPlan):
    """Before the first write, another process hands out a token too."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        self.token = ""

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        if call.operation == "PutItem" and not self.token:
            with inject(FaultPlan()):
                self.token = await ConfirmTokens().issue(self.scope, PATCH)
        return await super().around(call, run)


async def test_who_makes_a_key_too_late_takes_the_one_that_is_there(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    rival = RacingProcess(scope)
    with inject(rival):
        token = await confirm_tokens.issue(scope, PATCH)
    for process in (confirm_tokens, ConfirmTokens()):
        await process.redeem(scope, PATCH, token)
        await process.redeem(scope, PATCH, rival.token)


async def test_no_two_tokens_are_the_same(scope: Scope) -> None:
    confirm_tokens = ConfirmTokens()
    assert len({await confirm_tokens.issue(scope, PATCH) for _ in range(20)}) == 20
