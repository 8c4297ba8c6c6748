"""The bounds in force of each tenant, and the messages for wrong ones."""

from pathlib import Path
from typing import get_args

import pytest

from spass.core.ids import TenantId
from spass.core.jobs import WorkKind
from spass.tenancy.bounds import Bounds
from spass.tenancy.capacity import Capacity
from spass.tenancy.config import BoundName, GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.yaml_source import ConfigError

ACME, OTHER = TenantId("acme"), TenantId("other")
BOUNDS = get_args(BoundName)


def bounds(capacity: Capacity, *tenants: TenantId, common: dict[str, int] | None = None, **own: int) -> Bounds:
    entries = [{"id": tenant} | ({"limits": own} if tenant == ACME else {}) for tenant in tenants]
    config = {
        "models": [{"name": "all-minilm-l6-v2", "kind": "embedding", "dimensions": 384, "context_window": 256}],
        "limits": common or {},
        "tenants": entries,
    }
    return Bounds(GatewayConfig.model_validate(config), capacity)


def in_force(of: Bounds, tenant: TenantId = ACME) -> tuple[int, int, int, int, int]:
    work = [of.work(tenant, kind) for kind in (WorkKind.RUNS, WorkKind.FILES, WorkKind.COMPACTIONS)]
    return of.places(tenant, "turns"), of.places(tenant, "followers"), work[0], work[1], work[2]


@pytest.mark.parametrize(
    ("capacity", "tenants", "expected"),
    [
        (Capacity(runs=8, jobs=32), (ACME,), (50, 25, 8, 16, 100)),
        (Capacity(runs=8, jobs=32), (ACME, OTHER), (50, 25, 4, 16, 50)),
        (Capacity(runs=32, jobs=64, compactions=20, followers=100), (ACME, OTHER), (50, 25, 8, 16, 10)),
        (Capacity(runs=5, jobs=7, compactions=3, followers=9), (ACME, OTHER), (50, 4, 2, 3, 1)),
        (Capacity(runs=5, jobs=7, compactions=3, followers=9), (ACME,), (50, 9, 5, 7, 3)),
        (Capacity(runs=1, jobs=1, compactions=1, followers=1), (ACME, OTHER), (50, 1, 1, 1, 1)),
    ],
)
def test_the_lower_of_the_bound_and_half_of_the_capacity_is_in_force(
    capacity: Capacity, tenants: tuple[TenantId, ...], expected: tuple[int, ...]
) -> None:
    assert in_force(bounds(capacity, *tenants)) == expected


def test_a_tenants_own_bounds_replace_those_of_all(tmp_path: Path) -> None:
    large = Capacity(runs=1000, jobs=1000, followers=1000)
    both = bounds(large, ACME, OTHER, common={"turns": 9, "runs": 5}, turns=2, followers=300, runs=7, jobs=1)
    assert in_force(both) == (2, 300, 7, 1, 50)
    assert in_force(both, OTHER) == (9, 25, 5, 16, 50)
    assert in_force(both, TenantId("unknown")) == (9, 25, 5, 16, 50)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "'5'", "true", "1000000"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_wrong_bound_is_reported_with_its_file_and_line(tmp_path: Path, name: str, value: str, is_own: bool) -> None:
    model = "models: [{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}]\n"
    own = f"tenants:\n  - id: acme\n    limits:\n      {name}: {value}\n"
    (tmp_path / "gateway.yaml").write_text(model + (own if is_own else f"limits:\n  # a comment\n\n  {name}: {value}\n"))
    with pytest.raises(ConfigError) as caught:
        load_gateway_config(tmp_path / "gateway.yaml")
    (problem,) = str(caught.value).splitlines()
    assert f"gateway.yaml:5: {'tenants[0].' if is_own else ''}limits.{name}: " in problem
