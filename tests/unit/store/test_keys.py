from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import AgentName, ApprovalId, IndexId, RequestId, SessionId, SummaryId, TenantId, UserId, WorkspaceId
from spass.core.time import Timestamp
from spass.store import keys
from spass.store.keys import Key

TENANTS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,8}", fullmatch=True).map(TenantId)
USERS = st.from_regex(r"[A-Za-z0-9._@:+-]{1,8}", fullmatch=True).map(UserId)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
INDICES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,8}", fullmatch=True).map(IndexId)


@st.composite
def all_keys(draw: st.DrawFn, tenant: TenantId) -> list[Key]:
    session, agent = SessionId(draw(NAMES)), AgentName(draw(NAMES))
    return [
        keys.session_head(tenant, session),
        keys.session_turn(tenant, session, draw(st.integers(1, 10**9))),
        keys.stream_head(tenant, draw(NAMES)),
        keys.stream_chunk(tenant, session, draw(NAMES), draw(st.integers(1, 99)), draw(st.integers(1, 10**9))),
        keys.user_session(tenant, draw(USERS), agent, session),
        keys.idempotency(tenant, draw(NAMES)),
        keys.approval(tenant, draw(USERS), ApprovalId(draw(NAMES))),
        keys.session_approval(tenant, session, ApprovalId(draw(NAMES))),
        keys.rag_manifest(tenant, draw(INDICES)),
        keys.workspace(tenant, WorkspaceId(draw(INDICES))),
        keys.workspace_version(tenant, WorkspaceId(draw(INDICES)), draw(NAMES), draw(st.integers(1, 10**9))),
        keys.deleted_generation(tenant, WorkspaceId(draw(INDICES)), draw(NAMES)),
        keys.usage(tenant, "2026-01-01", agent, draw(NAMES), draw(USERS), draw(st.integers(0, 15))),
        keys.tenant_limit(tenant, draw(st.integers(0, 15))),
        keys.followers_limit(tenant, draw(st.integers(0, 15))),
        keys.turns_limit(tenant, draw(st.integers(0, 15))),
        keys.schedules_limit(tenant),
        keys.audit(tenant, RequestId(draw(NAMES)), Timestamp("2026-01-01T00:00:00.000Z"), RequestId(draw(NAMES))),
    ]


@given(st.data(), TENANTS, TENANTS)
def test_keys_of_two_tenants_never_collide(data: st.DataObject, one: TenantId, other: TenantId) -> None:
    mine = data.draw(all_keys(one))
    theirs = data.draw(all_keys(other))
    assert all(key.pk.startswith(keys.tenant_prefix(one)) for key in mine)
    if one != other:
        assert not any(key.pk.startswith(keys.tenant_prefix(one)) for key in theirs)


@given(st.data(), TENANTS)
def test_keys_of_different_kinds_never_collide(data: st.DataObject, tenant: TenantId) -> None:
    drawn = data.draw(all_keys(tenant))
    assert len(set(drawn)) == len(drawn)


@given(USERS, USERS, NAMES, NAMES, TENANTS)
def test_two_users_or_agents_never_share_a_partition(
    user: UserId, other: UserId, agent: str, second: str, tenant: TenantId
) -> None:
    one = keys.user_sessions_partition(tenant, user, AgentName(agent))
    two = keys.user_sessions_partition(tenant, other, AgentName(second))
    assert (one == two) == ((user, agent) == (other, second))


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_turns_sort_by_sequence_number(one: int, other: int) -> None:
    tenant, session = TenantId("t"), SessionId("s")
    assert (keys.session_turn(tenant, session, one).sk < keys.session_turn(tenant, session, other).sk) == (one < other)


@given(NAMES, st.tuples(st.integers(1, 99), st.integers(1, 10**9)), st.tuples(st.integers(1, 99), st.integers(1, 10**9)))
def test_chunks_sort_by_number_within_their_attempt(digest: str, one: tuple[int, int], other: tuple[int, int]) -> None:
    tenant, session = TenantId("t"), SessionId("s")
    first, second = (keys.stream_chunk(tenant, session, digest, *place) for place in (one, other))
    assert keys.parse_stream_chunk(first.sk) == (digest, *one)
    assert first.sk.startswith(keys.stream_chunk_prefix(digest, other[0])) == (one[0] == other[0])
    if one[0] == other[0]:
        assert (first.sk < second.sk) == (one[1] < other[1])


def test_only_chunks_have_the_sort_keys_of_chunks() -> None:
    tenant, session = TenantId("t"), SessionId("s")
    others = [
        keys.session_head(tenant, session),
        keys.session_turn(tenant, session, 1),
        keys.session_summary(tenant, session, SummaryId("1")),
    ]
    assert [keys.parse_stream_chunk(key.sk) for key in others] == [None, None, None]


@given(
    USERS | st.just(""), NAMES | st.just(""), st.text("ab#", max_size=3), USERS | st.just(""), NAMES, st.text("ab#", max_size=3)
)
def test_calls_with_different_names_never_share_a_usage_row(
    user: str, agent: str, model: str, other: str, second: str, another: str
) -> None:
    tenant, day = TenantId("t"), "2026-04-30"
    one = keys.usage(tenant, day, agent, model, user, 3)
    two = keys.usage(tenant, day, second, another, other, 3)
    assert (one == two) == ((agent, model, user) == (second, another, other))
    assert one.pk == keys.usage_partition(tenant, "2026-04")
