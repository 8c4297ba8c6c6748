"""The cascade process → yaml → db: effective settings, their sources, and the time until every process knows a change."""

import asyncio
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.core.errors import AboveCeiling, InvalidRequest, StorageUnavailable
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import FRESH_SECONDS, Cascade
from spass.testing.aws import MemoryAws
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.tenancy.lagging_table import Clock, LaggingTable, Row, build_store

pytestmark = pytest.mark.anyio

TOOLS: Final = ("calculator", "rag_query")
CONFIG: Final = GatewayConfig.model_validate(
    {
        "models": [
            {"name": "small", "context_window": 1000},
            {"name": "mini-embed", "kind": "embedding", "dimensions": 3, "context_window": 16},
        ],
        "defaults": {"compact_keep_last_n": 7, "system_prompt": "Be kind.", "embedding_model": "mini-embed"},
        "tenants": [{"id": "acme", "defaults": {"system_prompt": None, "rag_top_k": 9, "memory": "The office is in Bonn."}}],
    }
)
DEFAULTS: Final[Mapping[str, Json]] = {
    "compact_strategy": "auto",
    "compact_keep_last_n": 7,
    "compact_observation_mask": True,
    "compact_summary_model": None,
    "system_prompt": None,
    "memory": "The office is in Bonn.",
    "tools_enabled_default": [],
    "rag_top_k": 9,
    "monthly_budget_usd": None,
    "tokens_per_minute": None,
}
SET_IN_THE_FILE: Final = {"system_prompt", "rag_top_k", "memory"}
SOURCES: Final[Mapping[str, Json]] = {key: "yaml" if key in SET_IN_THE_FILE else "process" for key in DEFAULTS}


def cascade(clock: Clock | None = None, config: GatewayConfig = CONFIG) -> Cascade:
    return Cascade(config, TOOLS, clock=clock or Clock())


def expected_config(changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return the answer of the route when ``changes`` is stored."""
    return {"config": {**DEFAULTS, **changes}, "sources": {**SOURCES, **dict.fromkeys(changes, "db")}}


async def test_settings_of_the_file_override_those_of_the_process(store: TenantStore) -> None:
    assert (await cascade().read(store)).to_dict() == expected_config({})
    unknown = Cascade(CONFIG.model_copy(update={"tenants": ()}))
    assert (await unknown.read(store)).config.system_prompt == "Be kind."


async def test_stored_settings_override_the_file_until_they_are_cleared(store: TenantStore) -> None:
    stored: dict[str, Json] = {
        "compact_strategy": "off",
        "compact_keep_last_n": 0,
        "compact_observation_mask": False,
        "compact_summary_model": "small",
        "system_prompt": "Answer in German.",
        "memory": "",
        "tools_enabled_default": ["rag_query", "calculator"],
        "rag_top_k": 50,
        "monthly_budget_usd": 12.5,
        "tokens_per_minute": 1000,
    }
    process = cascade()
    assert (await process.change(store, stored)).to_dict() == expected_config(stored)
    assert (await process.effective(store)).to_dict() == expected_config(stored)
    assert (await cascade().read(store)).to_dict() == expected_config(stored)
    assert json.loads(json.dumps(expected_config(stored))) == expected_config(stored)
    assert (await process.change(store, dict.fromkeys(stored))).to_dict() == expected_config({})
    assert (await cascade().effective(store)).to_dict() == expected_config({})


async def test_a_change_keeps_the_other_settings(store: TenantStore) -> None:
    process = cascade()
    await process.change(store, {"rag_top_k": 3, "memory": "Ada likes tea."})
    changed = await process.change(store, {"memory": None, "tokens_per_minute": 5})
    assert changed.to_dict() == expected_config({"rag_top_k": 3, "tokens_per_minute": 5})
    assert (await process.change(store, {})).to_dict() == changed.to_dict()


async def test_concurrent_changes_of_different_keys_are_all_stored(store: TenantStore) -> None:
    changes: list[dict[str, Json]] = [{"rag_top_k": 2}, {"memory": "x"}, {"tokens_per_minute": 7}, {"compact_strategy": "off"}]
    await asyncio.gather(*(cascade().change(store, change) for change in changes))
    assert (await cascade().read(store)).to_dict() == expected_config(
        {key: value for change in changes for key, value in change.items()}
    )


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"rag_topk": 3}, "rag_topk", "rag_topk: unknown key; did you mean 'rag_top_k'?"),
        ({"rag_topk": None}, "rag_topk", "rag_topk: unknown key; did you mean 'rag_top_k'?"),
        ({"embedding_model": "mini-embed"}, "embedding_model", "embedding_model: unknown key"),
        ({"rag_top_k": 51}, "rag_top_k", "rag_top_k: must be less than or equal to 50"),
        ({"rag_top_k": 5.0}, "rag_top_k", "rag_top_k: must be a whole number"),
        ({"rag_top_k": True}, "rag_top_k", "rag_top_k: must be a whole number"),
        ({"compact_strategy": "never"}, "compact_strategy", "compact_strategy: must be 'auto', 'manual' or 'off'"),
        ({"compact_keep_last_n": -1}, "compact_keep_last_n", "compact_keep_last_n: must be greater than or equal to 0"),
        ({"compact_observation_mask": 1}, "compact_observation_mask", "compact_observation_mask: must be true or false"),
        (
            {"compact_summary_model": "mini-embed"},
            "compact_summary_model",
            "compact_summary_model: 'mini-embed' is not a chat model",
        ),
        ({"system_prompt": 5}, "system_prompt", "system_prompt: must be text"),
        ({"system_prompt": "ü" * 16385}, "system_prompt", "system_prompt: must be at most 32768 bytes"),
        ({"memory": "x" * 16385}, "memory", "memory: must be at most 16384 bytes"),
        ({"tools_enabled_default": "calculator"}, "tools_enabled_default", "tools_enabled_default: must be a list"),
        (
            {"tools_enabled_default": ["rag_query", "calculater"]},
            "tools_enabled_default.1",
            "tools_enabled_default[1]: 'calculater' is not a tool of this gateway; did you mean 'calculator'?",
        ),
        ({"monthly_budget_usd": "12"}, "monthly_budget_usd", "monthly_budget_usd: must be a number"),
        ({"monthly_budget_usd": True}, "monthly_budget_usd", "monthly_budget_usd: must be a number"),
        ({"monthly_budget_usd": -0.01}, "monthly_budget_usd", "monthly_budget_usd: must be greater than or equal to 0"),
        ({"monthly_budget_usd": 1e-300}, "monthly_budget_usd", "monthly_budget_usd: must have no more than 30 digits in total"),
        ({"tokens_per_minute": 0}, "tokens_per_minute", "tokens_per_minute: must be greater than 0"),
        ({"tokens_per_minute": 10**40}, "tokens_per_minute", "tokens_per_minute: must be less than or equal to"),
    ],
)
async def test_a_bad_change_is_refused_and_nothing_is_stored(
    store: TenantStore, changes: dict[str, Json], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await cascade().change(store, {"compact_keep_last_n": 3, **changes})
    assert (caught.value.param, caught.value.message[: len(message)]) == (param, message)
    assert await store.table.get(keys.tenant_config(store.tenant)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system_prompt": 5}, "system_prompt: must be text"),
        ({"tools_enabled_default": [5]}, "tools_enabled_default[0]: must be text"),
        (
            {"compact_summary_model": "mini-embed"},
            "compact_summary_model: 'mini-embed' is not a chat model of the catalogue; known: small",
        ),
    ],
)
async def test_a_message_about_json_does_not_mention_a_file(store: TenantStore, changes: dict[str, Json], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await cascade().change(store, changes)
    assert caught.value.message == message


async def test_every_problem_of_a_change_is_reported(store: TenantStore) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await cascade().change(store, {"x" * 500: 1, "rag_top_k": 0, "memory": 3})
    assert caught.value.message.endswith(" (and 2 more)")
    errors: Any = caught.value.details["errors"]
    assert [error["loc"] for error in errors] == [["body", "x" * 64], ["body", "memory"], ["body", "rag_top_k"]]


async def test_a_stored_value_that_is_no_longer_valid_is_ignored_and_logged(
    store: TenantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    await cascade().change(store, {"compact_summary_model": "small", "tools_enabled_default": ["calculator"], "rag_top_k": 4})
    shrunk = CONFIG.model_copy(update={"models": CONFIG.models[1:]})
    process = Cascade(shrunk, ["rag_query"], clock=Clock())
    assert (await process.effective(store)).to_dict() == expected_config({"rag_top_k": 4})
    assert (await process.read(store)).sources["compact_summary_model"] == "process"
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], line["tenant"]) == ("tenant_config_ignored", "acme")
    assert line["settings"] == ["compact_summary_model", "tools_enabled_default"]


async def test_values_in_the_form_of_a_later_version_are_ignored(store: TenantStore) -> None:
    await store.table.write(Put(keys.tenant_config(store.tenant), {"rag_top_k": "many", "memory": "x", "new": 1, "version": 2}))
    assert (await cascade().effective(store)).to_dict() == expected_config({"memory": "x"})


async def test_one_read_serves_all_callers_until_it_is_stale() -> None:
    clock = Clock()
    table = LaggingTable(Row(clock))
    process, store = cascade(clock), build_store(table)
    await asyncio.gather(*(process.effective(store) for _ in range(100)))
    clock.now = FRESH_SECONDS - 0.001
    await process.effective(store)
    assert table.reads == {True: 0, False: 1}
    clock.now = FRESH_SECONDS
    await asyncio.gather(*(process.effective(store) for _ in range(100)))
    assert table.reads == {True: 0, False: 2}


async def test_bypassing_the_cache_reads_the_change_of_another_process() -> None:
    clock = Clock()
    row = Row(clock)
    process, table = cascade(clock), LaggingTable(row, lambda: 3.0)
    await process.effective(build_store(table))
    await cascade(clock).change(build_store(LaggingTable(row)), {"rag_top_k": 4})
    assert (await process.effective(build_store(table))).config.rag_top_k == 9
    assert (await process.effective(build_store(table), bypass_cache=True)).config.rag_top_k == 4
    assert (await process.effective(build_store(table))).config.rag_top_k == 4
    assert table.reads == {True: 1, False: 1}


async def test_bypassing_the_cache_does_not_read_again_while_the_table_is_silent() -> None:
    clock = Clock()
    process, table = cascade(clock), LaggingTable(Row(clock))
    await process.effective(build_store(table))
    table.silent = True
    for _ in range(3):
        assert (await process.effective(build_store(table), bypass_cache=True)).to_dict() == expected_config({})
    assert table.reads == {True: 1, False: 1}


async def test_a_cancelled_caller_does_not_cancel_the_shared_read(store: TenantStore) -> None:
    process = cascade()
    first, second = (asyncio.create_task(process.effective(store)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).to_dict() == expected_config({})
    assert (await process.effective(store)).to_dict() == expected_config({})


async def test_while_the_table_is_silent_cached_settings_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    row = Row(clock)
    table = LaggingTable(row)
    process, store = cascade(clock), build_store(table)
    await process.change(store, {"rag_top_k": 4})
    table.silent = True
    for clock.now in (40, 41, 50, 3600):
        assert (await process.effective(store)).to_dict() == expected_config({"rag_top_k": 4})
    assert table.reads[False] == 3  # a failed read takes seconds, so not every request tries it
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line).items() >= {"event": "tenant_config_stale", "tenant": "acme", "level": "warning"}.items()
    await cascade(clock).change(build_store(LaggingTable(row)), {"rag_top_k": 5})
    table.silent = False
    clock.now += 10
    assert (await process.effective(store)).to_dict() == expected_config({"rag_top_k": 5})


async def test_without_cached_settings_a_silent_table_is_an_error() -> None:
    table = LaggingTable(Row(Clock()))
    table.silent = True
    process, store = cascade(), build_store(table)
    for ask in (process.effective(store), process.read(store), process.change(store, {"rag_top_k": 3})):
        with pytest.raises(StorageUnavailable):
            await ask
    table.silent = False
    assert (await process.effective(store)).to_dict() == expected_config({})


async def test_a_stale_reply_does_not_undo_a_change_of_this_process() -> None:
    clock = Clock()
    row = Row(clock)
    process = cascade(clock)
    clock.now = 100
    await process.change(build_store(LaggingTable(row)), {"rag_top_k": 4})
    clock.now = 131
    behind = build_store(LaggingTable(row, lambda: 60.0))
    assert (await process.effective(behind)).to_dict() == expected_config({"rag_top_k": 4})


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.TIMEOUT, Fault.REPEATED])
async def test_a_lost_reply_does_not_lose_the_change(store: TenantStore, fault: Fault) -> None:
    process = cascade()
    with inject(FaultPlan(fault, at=0)):
        assert (await process.change(store, {"rag_top_k": 4})).to_dict() == expected_config({"rag_top_k": 4})
    assert (await cascade().effective(store)).to_dict() == expected_config({"rag_top_k": 4})


async def test_after_a_change_with_an_unknown_outcome_the_settings_are_read(store: TenantStore) -> None:
    process = cascade()
    await process.effective(store)
    await cascade().change(store, {"rag_top_k": 4})
    silent = LaggingTable(Row(Clock()))
    silent.silent = True
    with pytest.raises(StorageUnavailable):
        await process.change(build_store(silent), {"rag_top_k": 5})
    assert (await process.effective(store)).config.rag_top_k == 4


async def test_after_a_cancelled_change_the_settings_are_read(store: TenantStore) -> None:
    process = cascade()
    await process.effective(store)
    change = asyncio.create_task(process.change(store, {"rag_top_k": 4}))
    await asyncio.sleep(0)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    assert (await process.effective(store)).to_dict() == (await cascade().read(store)).to_dict()


CEILINGS: Final[Mapping[str, Json]] = {"monthly_budget_usd": 20.5, "tokens_per_minute": 1000}


def with_ceilings(defaults: Mapping[str, Json] | None = None) -> GatewayConfig:
    """Return ``CONFIG`` with ceilings of the tenant ``acme``, and ``defaults`` of all tenants."""
    file = CONFIG.model_dump(mode="json", exclude_unset=True)
    file["tenants"][0]["limits"] = CEILINGS
    file["defaults"] |= defaults or {}
    return GatewayConfig.model_validate(file)


@pytest.mark.parametrize("key", CEILINGS)
async def test_without_a_lower_value_the_ceiling_is_in_force(store: TenantStore, key: str) -> None:
    process = cascade(config=with_ceilings())
    assert (await process.read(store)).to_dict() == {
        "config": {**DEFAULTS, **CEILINGS},
        "sources": {**SOURCES, **dict.fromkeys(CEILINGS, "yaml")},
        "ceilings": CEILINGS,
    }
    for value, in_force in ((7, 7), (CEILINGS[key], CEILINGS[key]), (None, CEILINGS[key])):
        changed = await process.change(store, {key: value})
        assert (getattr(changed.config, key), changed.sources[key]) == (in_force, "yaml" if value is None else "db")


@pytest.mark.parametrize(("default", "in_force", "source"), [(500, "20.5", "yaml"), (3, "3", "process")])
async def test_of_a_default_for_all_tenants_and_a_ceiling_the_lower_is_in_force(
    store: TenantStore, default: int, in_force: str, source: str
) -> None:
    answer = await cascade(config=with_ceilings({"monthly_budget_usd": default})).read(store)
    assert (answer.config.monthly_budget_usd, answer.sources["monthly_budget_usd"]) == (Decimal(in_force), source)


async def test_a_change_above_a_ceiling_is_refused_and_nothing_is_stored(store: TenantStore) -> None:
    process = cascade(config=with_ceilings())
    for key, value, ceiling in (("monthly_budget_usd", 20.51, 20.5), ("tokens_per_minute", 1001, 1000)):
        with pytest.raises(AboveCeiling) as caught:
            await process.change(store, {"memory": "x", key: value})
        assert (caught.value.param, caught.value.details) == (key, {"key": key, "value": value, "ceiling": ceiling})
    assert await store.table.get(keys.tenant_config(store.tenant)) is None


async def test_a_value_stored_before_the_ceiling_is_bounded_by_it(store: TenantStore) -> None:
    await cascade().change(store, {"monthly_budget_usd": 1000, "tokens_per_minute": 10})
    answer = await cascade(config=with_ceilings()).effective(store)
    assert (answer.config.monthly_budget_usd, answer.sources["monthly_budget_usd"]) == (Decimal("20.5"), "yaml")
    assert (answer.config.tokens_per_minute, answer.sources["tokens_per_minute"]) == (10, "db")


async def test_tenants_do_not_share_settings() -> None:
    process, aws = cascade(), MemoryAws()
    store, other = aws.for_tenant(TenantId("acme")), aws.for_tenant(TenantId("other"))
    await process.change(store, {"rag_top_k": 4})
    assert (await process.effective(other)).config.rag_top_k == 5
    assert (await process.effective(store)).config.rag_top_k == 4


VALUES: Final[Mapping[str, st.SearchStrategy[Json]]] = {
    "compact_strategy": st.sampled_from(["auto", "manual", "off"]),
    "compact_keep_last_n": st.integers(0, 200),
    "compact_observation_mask": st.booleans(),
    "compact_summary_model": st.just("small"),
    "system_prompt": st.text("ab ü\n", max_size=5),
    "memory": st.text("ab ü\n", max_size=5),
    "tools_enabled_default": st.lists(st.sampled_from(TOOLS), max_size=3),
    "rag_top_k": st.integers(1, 50),
    "monthly_budget_usd": st.integers(0, 10**9) | st.decimals(0, 1000, places=4).map(float),
    "tokens_per_minute": st.integers(1, 10**12),
}
CHANGE = st.fixed_dictionaries({}, optional={key: st.none() | value for key, value in VALUES.items()})
PROCESS = st.integers(0, 2)
PAUSE = st.sampled_from([0.0, 0.5, 5.0, 20.0, 29.0, 31.0, 61.0])
STEP = st.one_of(
    st.tuples(st.just("put"), PROCESS, CHANGE),
    st.tuples(st.just("use"), st.sets(PROCESS, min_size=1), PAUSE),
    st.tuples(st.just("use"), st.just({0, 1, 2}), PAUSE),
    st.tuples(st.just("read"), PROCESS, PAUSE),
)


@settings(max_examples=200)
@given(steps=st.lists(STEP, max_size=40), lags=st.lists(st.floats(0, 3), min_size=1, max_size=5))
async def test_every_process_uses_a_change_within_a_minute(steps: list[tuple[str, Any, Any]], lags: list[float]) -> None:
    clock = Clock(1000.0)
    row = Row(clock)
    turn = iter(range(10**9))
    processes = [cascade(clock) for _ in range(3)]
    store = build_store(LaggingTable(row, lambda: lags[next(turn) % len(lags)]))
    changes: list[tuple[float, int, dict[str, Json]]] = [(0.0, -1, {})]  # the time, the process, and all stored settings
    for kind, who, what in steps:
        if kind == "put":
            stored = {key: value for key, value in {**changes[-1][2], **what}.items() if value is not None}
            assert (await processes[who].change(store, what)).to_dict() == expected_config(stored)
            if what:
                changes.append((clock.now, who, stored))
            continue
        clock.now += what
        if kind == "read":
            assert (await processes[who].read(store)).to_dict() == expected_config(changes[-1][2])
            continue
        for number in who:
            # Allowed are the last settings of this process or of a minute ago, and all later ones.
            oldest = max(index for index, (at, by, _) in enumerate(changes) if by == number or at <= clock.now - 60 or index == 0)
            assert (await processes[number].effective(store)).to_dict() in [
                expected_config(stored) for *_, stored in changes[oldest:]
            ]
