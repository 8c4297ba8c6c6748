"""Print what an environment costs: idle dollars a month line by line, what each option adds, and dollars per million requests of
each route.

    python -m infra.costs [ENVIRONMENT]

Everything comes from the templates as they would be deployed, from counted calls (``bench.calls``) and from list prices. It needs
no account. A test compares the README and the page of operations with it.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aws_cdk import App

from infra.application import add_stacks
from infra.config_files import environments_file
from infra.constructs.function import TAG
from infra.constructs.sandbox import NAME as SANDBOX
from infra.costs.idle import Template, idle_lines, memory_of, snapshot_line
from infra.costs.prices import BUCKET_GB_MONTH, KEY_MONTH, METRIC_MONTH, WEB_ACL_MONTH, WEB_REQUEST, WEB_RULE_MONTH
from infra.costs.requests import MILLION, MODEL_SECONDS, SWEEP, further_costs, read_counts, route_costs
from infra.environments import Environment
from infra.environments_file import EnvironmentsFileInvalid, load_environments
from infra.routes import ROUTES

_WEB_RULES: Final = 4
_SNAPSHOTS: Final = snapshot_line(sum((Decimal(route.memory) / 1024 for route in ROUTES if route.long), Decimal()))
OPTIONS: Final = {
    "audit_archive_days": (Decimal(), f"{BUCKET_GB_MONTH:.4f} for each GB that it keeps"),
    "budget_usd": (Decimal(), "a budget that only sends mails is free"),
    "compaction_steps": (Decimal(), "reserved concurrency is free"),
    "copy_to": (
        Decimal(),
        "two alarms where there are alarms; AWS Backup bills what it keeps, and the traffic between the regions",
    ),
    "domain": (Decimal(), "its certificate is free; a hosted zone costs 0.50"),
    "followers": (Decimal(), "reserved concurrency is free"),
    "key": (KEY_MONTH, "and 0.03 for each 10,000 uses of the key"),
    "metrics": (
        Decimal(),
        f"{METRIC_MONTH:.2f} for each that gets values; with 4 models, 8 tools and 3 kinds {34 * METRIC_MONTH:.2f}",
    ),
    "restored": (Decimal(), "the table that it replaces is billed by its size"),
    "snap_start": (_SNAPSHOTS.dollars, _SNAPSHOTS.what),
    "traces": (Decimal(), "what the endpoint bills for spans"),
    "waf": (WEB_ACL_MONTH + _WEB_RULES * WEB_RULE_MONTH, f"and {WEB_REQUEST * MILLION:.2f} per million requests"),
}
"""What each option of an environment adds to an idle month, and what it costs besides."""


def report(environment: Environment, templates: Sequence[Template]) -> Iterator[str]:
    """Yield the lines of the report on an environment with these templates."""
    yield f"{environment.name} in {environment.region}, list prices of eu-central-1 in US dollars, on demand, without free tiers."
    yield ""
    yield "A month while nobody uses it; what is stored is billed by its size:"
    yield ""
    yield from idle_report(templates)
    yield ""
    yield "An option adds, a month while nobody uses it:"
    yield ""
    options = {field.name for field in fields(Environment)}
    for name, (dollars, besides) in OPTIONS.items():
        if name in options:
            yield f"{dollars:8.2f}  {name}: {besides}"
    yield ""
    yield f"A million requests, without the tokens of models. A model takes {MODEL_SECONDS} s; queued work is extra:"
    yield ""
    yield from request_report(templates)


def idle_report(templates: Sequence[Template]) -> Iterator[str]:
    """Yield a line for each thing that is billed while nobody uses the deployment, and their sum."""
    lines = idle_lines(templates, read_counts()[SWEEP])
    for line in sorted(lines, key=lambda line: -line.dollars):
        yield f"{line.dollars:8.2f}  {line.what}"
    yield f"{sum(line.dollars for line in lines):8.2f}  in all"


def request_report(templates: Sequence[Template]) -> Iterator[str]:
    memory = memory_of(templates, TAG)
    yield f"{'all':>8} {'function':>8} {'table':>7} {'API':>7} {'logs':>7} {'other':>7}  route"
    for cost in route_costs(memory):
        columns = f"{cost.table:7.2f} {cost.api:7.2f} {cost.logs:7.2f} {cost.other:7.2f}"
        yield f"{cost.total:8.2f} {cost.function:8.2f} {columns}  {cost.label}"
    for what, dollars in further_costs(memory, memory[SANDBOX]):
        yield f"{dollars:8.2f} {'':40} {what}"


def synthesised(environment: Environment) -> list[Template]:
    """Return the templates of ``environment``. Nothing is bundled, and no tenant is needed."""
    with TemporaryDirectory() as folder:
        app = App(analytics_reporting=False, context={"aws:cdk:bundling-stacks": []}, outdir=folder)
        add_stacks(app, [replace(environment, needs_tenant=False)])
        app.synth()
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("*.template.json"))]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m infra.costs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    try:
        known = load_environments(environments_file())
    except EnvironmentsFileInvalid as error:
        raise SystemExit(str(error)) from None
    parser.add_argument("environment", nargs="?", choices=known, default="prod")
    environment = known[parser.parse_args().environment]
    print("\n".join(report(environment, synthesised(environment))))


if __name__ == "__main__":
    main()
