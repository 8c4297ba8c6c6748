"""Read what would be deployed from the CDK's cloud assembly, so that a command needs neither the CDK nor a second source."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Template: TypeAlias = dict[str, Any]


class AssemblyMissing(Exception):
    """There is no assembly of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What would be deployed of one environment.

    ``account`` is None if the environment takes that of the credentials. ``bootstrap`` is the least version of the CDK's
    bootstrap stack, and ``bootstrap_parameter`` the SSM parameter with the version of the account.
    """

    environment: str
    account: str | None
    region: str
    api_stack: str
    api: Template
    bootstrap: int
    bootstrap_parameter: str


def read_assembly(folder: Path, environment: str) -> Assembly:
    """Return what ``folder`` would deploy as ``environment``.

    Raises:
        AssemblyMissing: the folder does not have it.
    """
    name = f"Spass-{environment}-Api"
    try:
        stack = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["artifacts"][name]
        api = json.loads((folder / stack["properties"]["templateFile"]).read_text(encoding="utf-8"))
    except (FileNotFoundError, KeyError):
        raise AssemblyMissing(
            f"{folder} has no stack {name}. Synthesise the environment first: make synth ARGS='-c env={environment}'"
        ) from None
    account, region = stack["environment"].removeprefix("aws://").split("/")
    return Assembly(
        environment=environment,
        account=None if account == "unknown-account" else account,
        region=region,
        api_stack=name,
        api=api,
        bootstrap=stack["properties"]["requiresBootstrapStackVersion"],
        bootstrap_parameter=stack["properties"]["bootstrapStackVersionSsmParameter"],
    )
