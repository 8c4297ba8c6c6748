"""Read the CDK's cloud assembly: the templates and files of a deployment. This needs no CDK."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

Template: TypeAlias = dict[str, Any]
Properties: TypeAlias = dict[str, Any]

# A function finds its layers and its code there.
_ROOTS: Final = ("/opt/", "/var/task/")


class AssemblyMissing(Exception):
    """The folder has no assembly of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack of the assembly with its nested stacks. ``templates`` begins with its own.

    ``account`` is None if the stack takes that of the credentials. ``bootstrap`` is the least version of the CDK's bootstrap
    stack in its region, and ``bootstrap_parameter`` the SSM parameter with the version that the account has there.
    """

    name: str
    account: str | None
    region: str
    templates: tuple[Template, ...]
    bundles: tuple[Path, ...]
    bootstrap: int
    bootstrap_parameter: str

    def resources(self, kind: str) -> Iterator[Properties]:
        """Yield the properties of each resource of this type."""
        return resources(self.templates, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The stacks of one environment: that of the API, and the others, on which it depends."""

    environment: str
    api: Stack
    others: tuple[Stack, ...] = ()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (*self.others, self.api)

    @property
    def account(self) -> str | None:
        return self.api.account

    @property
    def region(self) -> str:
        return self.api.region

    @property
    def release(self) -> str | None:
        """Return the name of the release, or None if it is of a time when a release had none."""
        return release_of(self.api.templates)

    def resources(self, kind: str) -> Iterator[Properties]:
        """Yield the properties of each resource of this type in all stacks."""
        for stack in self.stacks:
            yield from stack.resources(kind)

    def file(self, variable: str) -> Path | None:
        """Return where the assembly has the file that this variable of the functions names, or None if it is not bundled."""
        for named in sorted(variables(self.api.templates, variable)):
            for root in _ROOTS:
                for bundle in self.api.bundles:
                    if named.startswith(root) and (file := bundle / named.removeprefix(root)).is_file():
                        return file
        return None


def resources(templates: tuple[Template, ...], kind: str) -> Iterator[Properties]:
    """Yield the properties of each resource of this type."""
    for template in templates:
        for resource in template.get("Resources", {}).values():
            if resource["Type"] == kind:
                yield resource.get("Properties", {})


def variables(templates: tuple[Template, ...], name: str) -> set[str]:
    """Return the values that this variable has in the functions. A value that is not a string is written as JSON."""
    values = [
        function.get("Environment", {}).get("Variables", {}).get(name)
        for function in resources(templates, "AWS::Lambda::Function")
    ]
    return {value if isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values if value is not None}


def release_of(templates: tuple[Template, ...]) -> str | None:
    """Return the name of the release with these templates, or None if they have none."""
    return next(iter(variables(templates, "SPASS_RELEASE")), None)


def has_body(templates: tuple[Template, ...]) -> bool:
    """Return True if the API of these templates is one OpenAPI body (decision 030)."""
    return any("Body" in api for api in resources(templates, "AWS::ApiGateway::RestApi"))


def read_assembly(folder: Path, environment: str) -> Assembly:
    """Return what ``folder`` would deploy as ``environment``.

    Raises:
        AssemblyMissing: the folder does not have it.
    """
    prefix = f"Spass-{environment}-"
    names = (f"{prefix}Copies", f"{prefix}Data", f"{prefix}Api")
    try:
        artifacts = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
        stacks = {name: _read_stack(folder, name, artifacts) for name in names if name in artifacts}
        api = stacks.pop(names[-1])
    except (FileNotFoundError, KeyError):
        raise AssemblyMissing(
            f"{folder} has no stack {names[-1]}. Synthesise the environment first: make synth ARGS='-c env={environment}'"
        ) from None
    return Assembly(environment=environment, api=api, others=tuple(stacks.values()))


def _read_stack(folder: Path, name: str, artifacts: dict[str, Any]) -> Stack:
    artifact = artifacts[name]
    properties = artifact["properties"]
    sources = _sources(folder, artifacts.get(f"{name}.assets"))
    nested = [source for source in sources if source.name.endswith(".nested.template.json")]
    account, region = artifact["environment"].removeprefix("aws://").split("/")
    return Stack(
        name=name,
        account=None if account == "unknown-account" else account,
        region=region,
        templates=tuple(json.loads(path.read_text(encoding="utf-8")) for path in [folder / properties["templateFile"], *nested]),
        bundles=tuple(source for source in sources if source.is_dir()),
        bootstrap=properties["requiresBootstrapStackVersion"],
        bootstrap_parameter=properties["bootstrapStackVersionSsmParameter"],
    )


def _sources(folder: Path, assets: dict[str, Any] | None) -> list[Path]:
    """Return the files and folders that a deployment of the stack uploads."""
    if assets is None:
        return []
    files = json.loads((folder / assets["properties"]["file"]).read_text(encoding="utf-8"))["files"]
    return [folder / file["source"]["path"] for file in files.values()]
