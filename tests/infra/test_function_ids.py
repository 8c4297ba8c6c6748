"""A change of ``long`` gives a function a new logical id, and the function of the other kind stays for one release."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App

from infra.constructs.function import TAG
from infra.environments import DEV
from infra.function_ids import function_id
from infra.routes import ROUTES, Route, Surface
from infra.stacks import api
from infra.stacks.api import ApiStack
from infra.stacks.data import DataStack

from .conftest import Template, tags

# Of these rows one becomes long, one short, and one leaves a function that it shared.
STOP, CREATE, OTHER = "streams-stop", "streams-create", "streams-other"
CHAT = [route for route in ROUTES if route.surface is Surface.CHAT]
STOP_ROW = next(route for route in CHAT if route.function_name == STOP)
CREATE_ROW = next(route for route in CHAT if route.function_name == CREATE)
SHARING = [replace(STOP_ROW, path=f"/{name}", module=f"streams.{name}", function="shared") for name in ("one", "other")]
BEFORE = [STOP_ROW, CREATE_ROW, *SHARING]
AFTER = [
    replace(STOP_ROW, long=True, retired=STOP),
    replace(CREATE_ROW, long=False, retired=CREATE),
    SHARING[0],
    replace(SHARING[1], long=True, function=None, retired="shared"),
]
KEPT = ("Handler", "Timeout", "Layers", "Role", "LoggingConfig", "MemorySize")


class Release:
    """The templates of a release with these rows only."""

    def __init__(self, routes: Sequence[Route], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "ROUTES", tuple(routes))
        monkeypatch.setattr(api, "Surface", [Surface.CHAT])
        app = App(analytics_reporting=False, context={"aws:cdk:bundling-stacks": []}, outdir=str(folder))
        stack = ApiStack(app, "Api", environment=DEV, data=DataStack(app, "Data", environment=DEV))
        app.synth()
        assert stack.subscriptions
        self.api = _resources(folder / stack.template_file)
        self.chat = _resources(folder / stack.surfaces[Surface.CHAT].template_file)
        self.permissions = _resources(folder / stack.permissions.template_file)
        self.subscriptions = _resources(folder / stack.subscriptions.template_file)

    def function(self, name: str) -> tuple[str, Template]:
        """Return the logical id and the properties of the function with this tag."""
        found = {key: one["Properties"] for key, one in self.chat.items() if one["Type"] == "AWS::Lambda::Function"}
        ((logical_id, function),) = ((key, one) for key, one in found.items() if tags(one)[TAG] == name)
        return logical_id, function

    def leads_to(self, row: Route, function: str) -> bool:
        """Return True if the integration of this row names the function. It names the surface's output."""
        (rest,) = [one["Properties"] for one in self.api.values() if one["Type"] == "AWS::ApiGateway::RestApi"]
        integration = rest["Body"]["paths"][row.resource][row.method.lower()]["x-amazon-apigateway-integration"]
        return f"chat{function[:-8]}" in json.dumps(integration["uri"])


@dataclass(frozen=True, slots=True)
class Upgrade:
    before: Release
    after: Release


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    folder = tmp_path_factory.mktemp("upgrade")
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Upgrade(*(Release(rows, folder / str(len(rows)) / str(rows is AFTER), monkeypatch) for rows in (BEFORE, AFTER)))


def _resources(file: Path) -> dict[str, Any]:
    resources: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["Resources"]
    return resources


def test_every_function_keeps_the_id_that_it_has_and_each_kind_has_its_own() -> None:
    unchanged = [row for row in ROUTES if row.retired is None]
    assert [row.module for row in unchanged if function_id(row.function_name, long=row.long) != row.function_name] == []
    assert len({function_id(name, long=long) for name in (STOP, CREATE, "new") for long in (True, False)}) == 6


@pytest.mark.parametrize("name", [STOP, CREATE])
def test_a_function_of_the_other_kind_is_a_new_one_beside_the_old_one(upgrade: Upgrade, name: str) -> None:
    old_id, old = upgrade.before.function(name)
    kept_id, kept = upgrade.after.function(f"{name}-retired")
    assert kept_id == old_id
    assert {key: kept[key] for key in KEPT} == {key: old[key] for key in KEPT}
    new_id, new = upgrade.after.function(name)
    (row,) = [row for row in AFTER if row.function_name == name]
    assert (new["Timeout"], new["Handler"] == "run.sh") == ((900, True) if row.long else (29, False))
    assert upgrade.before.leads_to(row, old_id)
    assert upgrade.after.leads_to(row, new_id)
    assert not upgrade.after.leads_to(row, old_id)


def test_a_function_that_a_row_leaves_serves_it_for_one_release(upgrade: Upgrade) -> None:
    (old_id, old), (kept_id, kept) = upgrade.before.function("shared"), upgrade.after.function("shared")
    assert kept_id == old_id
    assert kept["Handler"] == old["Handler"]
    assert kept["Environment"]["Variables"]["SPASS_ROUTES"] == old["Environment"]["Variables"]["SPASS_ROUTES"]
    assert upgrade.after.leads_to(AFTER[-1], upgrade.after.function(OTHER)[0])


def test_the_api_may_still_invoke_the_old_functions(upgrade: Upgrade) -> None:
    assert upgrade.before.permissions.items() <= upgrade.after.permissions.items()
    assert len(upgrade.after.permissions) == len(upgrade.before.permissions) + 3


def test_the_calls_of_an_old_function_are_still_archived(upgrade: Upgrade) -> None:
    assert upgrade.before.subscriptions.items() <= upgrade.after.subscriptions.items()
    assert len(upgrade.after.subscriptions) == len(upgrade.before.subscriptions) + 1
