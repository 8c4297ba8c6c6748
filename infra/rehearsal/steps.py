"""The steps of a rehearsal, in order. Each returns in words what it has seen, or raises `RehearsalFailed`."""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from botocore.exceptions import ClientError

from infra.rehearsal import probes, use
from infra.rehearsal.assemblies import CHANGED_PATH, ENVIRONMENT
from infra.rehearsal.emulator import REGION
from infra.rehearsal.processes import RehearsalFailed
from infra.rehearsal.rehearsal import ACCOUNT, AGENT, API_STACK, DATA_STACK, KEY, MODEL, Json, Rehearsal

_SESSIONS: Final = f"/a1/agents/{AGENT}/sessions"
_TEXT: Final = "The last release wrote this."
_BETWEEN_STREAMS_SECONDS: Final = 8.0
"""Less than a third of what a stream takes."""


def _synthesis(rehearsal: Rehearsal) -> str:
    rehearsal.now = rehearsal.assemblies.synthesise()
    return f"{_megabytes(rehearsal.now)} MB of assembly"


def _last_release(rehearsal: Rehearsal) -> str:
    kept, rehearsal.kept = rehearsal.assemblies.kept()
    return f"{'kept' if kept.archive else 'synthesised from'} {kept.commit[:12]}"


def _check(rehearsal: Rehearsal) -> str:
    """Before the bootstrap, the check must refuse."""
    try:
        rehearsal.operate("check", "--env", ENVIRONMENT, "--assembly", str(rehearsal.now))
    except RehearsalFailed:
        if "cdk ARGS='bootstrap" not in rehearsal.log.read_text(encoding="utf-8"):
            raise
        return "refuses an account that the CDK has not prepared"
    raise RehearsalFailed("operate check accepts an account without bootstrap.", rehearsal.log)


def _bootstrap(rehearsal: Rehearsal) -> str:
    rehearsal.cdk("bootstrap", f"aws://{ACCOUNT}/{REGION}", app=rehearsal.now)
    rehearsal.client("ssm").put_parameter(Name=f"/spass/{ENVIRONMENT}/{KEY}", Value="rehearsal", Type="SecureString")
    return "and a key of a provider"


def _first_deployment(rehearsal: Rehearsal) -> str:
    rehearsal.deploy(rehearsal.kept)
    return f"{_resource_count(rehearsal)} resources"


def _data(rehearsal: Rehearsal) -> str:
    """Write a session through the last release."""
    rehearsal.session = rehearsal.call("POST", _SESSIONS, {"title": "rehearsal"}, status=201)["id"]
    turn = {"message_id": "first", "session_id": rehearsal.session, "messages": [{"role": "user", "content": _TEXT}]}
    rehearsal.stream(f"/c1/agents/{AGENT}/chat", turn)
    rehearsal.scheduled = use.schedule(rehearsal)
    return "a session with a turn, and a managed agent with a schedule"


def _upgrade(rehearsal: Rehearsal) -> str:
    """Deploy the code as it is while a turn streams and a file is ingested, and read what the last release has written."""
    before, url, begun = stored_resources(rehearsal), rehearsal.url, datetime.now(UTC)
    file = use.upload(rehearsal, "large.md", use.large_text())
    streams: list[use.OpenStream] = []
    with ThreadPoolExecutor(1) as pool:
        deployment = pool.submit(rehearsal.deploy, rehearsal.now)
        while not deployment.done():  # the moment at which the functions change is not known before
            streams.append(use.OpenStream.start(rehearsal))
            wait([deployment], _BETWEEN_STREAMS_SECONDS)
        deployment.result()
    _expect_kept(rehearsal, before, url)
    times = [stream.finish() for stream in streams]
    changed = use.last_change(rehearsal, use.TURN_FUNCTION)
    documents = use.wait_for(rehearsal, file)["documents_ingested"]
    through = (
        f"{use.count_through(times, changed)} of {len(times)} streams go through it"
        if changed > begun
        else "it changes no function"
    )
    return f"{through}, and a file ({documents} documents); nothing stored is lost"


def _repetition(rehearsal: Rehearsal) -> str:
    printed = rehearsal.deploy(rehearsal.now)
    if printed.count("(no changes)") != 2:
        raise RehearsalFailed("The second deployment of the same assembly changes something.", rehearsal.log)
    return "no changes"


def _smoke(rehearsal: Rehearsal) -> str:
    printed = rehearsal.operate("smoke", "--url", rehearsal.url, "--model", MODEL, "--yes")
    return printed.strip().splitlines()[-1]


def _changed_route(rehearsal: Rehearsal) -> str:
    """Deploy another path of a route, and a table that an operator has restored. The data stack stays as it is."""
    before, url = stored_resources(rehearsal), rehearsal.url
    table = _restore_table(rehearsal)
    rehearsal.deploy(rehearsal.assemblies.changed(table))
    _expect_kept(rehearsal, before, url)
    # The function itself knows only its own path, but it is asked.
    for path, expected in ((CHANGED_PATH, True), ("/healthz", False)):
        with rehearsal.gateway() as gateway:
            if use.is_of_a_function(gateway.get(path)) is not expected:
                raise RehearsalFailed(f"{path} leads to {'no' if expected else 'a'} function.")
    rehearsal.call("POST", _SESSIONS, {"title": "restored"}, status=201)
    counts = [_count(rehearsal, name) for name in (table, rehearsal.output(DATA_STACK, "TableName"))]
    if counts[0] <= counts[1]:
        raise RehearsalFailed(f"The gateway does not write into the restored table: {counts}")
    return "the new path answers, the old one is gone, and the restored table is used"


def _restore_table(rehearsal: Rehearsal) -> str:
    """Return the name of a new table with the items of the gateway's."""
    dynamodb, name = rehearsal.client("dynamodb"), "rehearsal-restored"
    source = rehearsal.output(DATA_STACK, "TableName")
    form = dynamodb.describe_table(TableName=source)["Table"]
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=form["KeySchema"],
        AttributeDefinitions=form["AttributeDefinitions"],
    )
    for page in dynamodb.get_paginator("scan").paginate(TableName=source):
        for item in page["Items"]:
            dynamodb.put_item(TableName=name, Item=item)
    return name


def _count(rehearsal: Rehearsal, table: str) -> int:
    pages = rehearsal.client("dynamodb").get_paginator("scan").paginate(TableName=table, Select="COUNT")
    return sum(page["Count"] for page in pages)


def _back(rehearsal: Rehearsal) -> str:
    """Deploy the API of the last release. What is stored stays in its newer form (decision 032)."""
    before, url = stored_resources(rehearsal), rehearsal.url
    rehearsal.deploy(rehearsal.kept, stacks=(API_STACK, "--exclusively"))
    _expect_kept(rehearsal, before, url)
    return "the last release reads the session too"


def _removal(rehearsal: Rehearsal) -> str:
    """Remove the stateless stack: what is stored stays."""
    before = stored_resources(rehearsal)
    rehearsal.cdk("destroy", API_STACK, "--exclusively", "--force", app=rehearsal.now)
    with contextlib.suppress(ClientError):
        if (status := _status(rehearsal, API_STACK)) != "DELETE_COMPLETE":
            raise RehearsalFailed(f"The stack {API_STACK} is {status}.", rehearsal.log)
    if stored_resources(rehearsal) != before:
        raise RehearsalFailed("The removal of the API changed stored resources.", rehearsal.log)
    items = _count(rehearsal, rehearsal.output(DATA_STACK, "TableName"))
    if not items:
        raise RehearsalFailed("The table is empty after the removal of the API.")
    return f"the table has {items} items"


def _status(rehearsal: Rehearsal, stack: str) -> str:
    return str(rehearsal.stacks().describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"])


def stored_resources(rehearsal: Rehearsal) -> dict[str, str]:
    """Return the physical ids of all that the data stack has."""
    resources = rehearsal.stacks().list_stack_resources(StackName=DATA_STACK)["StackResourceSummaries"]
    return {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in resources}


def _expect_kept(rehearsal: Rehearsal, stored: dict[str, str], url: str) -> None:
    now = stored_resources(rehearsal)
    if changed := [name for name, one in stored.items() if now.get(name) != one]:
        raise RehearsalFailed(f"The deployment replaced stored resources: {', '.join(changed)}", rehearsal.log)
    if rehearsal.url != url:
        raise RehearsalFailed(f"The gateway had the URL {url}, and now it has {rehearsal.url}", rehearsal.log)
    session = rehearsal.call("GET", f"{_SESSIONS}/{rehearsal.session}/messages")
    if _TEXT not in json.dumps(session):
        raise RehearsalFailed(f"The session has lost its messages: {json.dumps(session)[:500]}")


def _resource_count(rehearsal: Rehearsal) -> int:
    stacks = [page["StackName"] for page in rehearsal.stacks().describe_stacks()["Stacks"]]
    ours = [name for name in stacks if name.startswith(f"Spass-{ENVIRONMENT}-")]
    return sum(len(page["StackResourceSummaries"]) for name in ours for page in _pages(rehearsal, name))


def _pages(rehearsal: Rehearsal, stack: str) -> Iterator[Json]:
    yield from rehearsal.stacks().get_paginator("list_stack_resources").paginate(StackName=stack)


def _megabytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


class Step(NamedTuple):
    """A step and what it does."""

    name: str
    act: Callable[[Rehearsal], str]


STEPS: Final[tuple[Step, ...]] = (
    Step("synthesis", _synthesis),
    Step("last release", _last_release),
    Step("operate check", _check),
    Step("bootstrap", _bootstrap),
    Step("first deployment", _first_deployment),
    Step("data", _data),
    Step("upgrade", _upgrade),
    Step("repetition", _repetition),
    Step("operate smoke", _smoke),
    Step("routes", use.routes),
    Step("schedule", lambda rehearsal: use.scheduled_run(rehearsal, rehearsal.scheduled)),
    Step("sweep", use.sweep),
    Step("differences", probes.differences),
    Step("changed route", _changed_route),
    Step("back", _back),
    Step("removal", _removal),
)
