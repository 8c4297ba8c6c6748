"""Writes ``local/template.json``: what is stored and what works in the background, as the CDK defines them, for the laptop's
emulator to provision.

Run as ``python -m infra.template``. A test compares the file with a fresh synthesis.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, cast

from aws_cdk import App, CfnElement, Stack

from infra.constructs.function import TAG
from infra.constructs.machine import Machine
from infra.environments import DEV
from infra.stacks.api import ApiStack
from infra.stacks.data import DataStack

PATH: Final = Path(__file__).resolve().parents[1] / "local" / "template.json"

TemplateNode: TypeAlias = dict[str, Any]

# What only a deployment by the CDK itself needs: the version of its bootstrap stack, and where its metadata lies.
_PARAMETERS: Final = "BootstrapVersion"
_RULES: Final = "CheckBootstrapVersion"
# The laptop has no roles, because the emulator does not check them. Logs and alarms are files and the terminal.
_WORKS: Final = frozenset(
    {
        "AWS::Lambda::Function",
        "AWS::Lambda::EventSourceMapping",
        "AWS::StepFunctions::StateMachine",
        "AWS::Scheduler::Schedule",
    }
)
_ROLE: Final = "arn:aws:iam::000000000000:role/nobody-checks"
# What the emulator is told of a function. Its code is the gateway's own: see `local/workers.py`.
_OF_A_FUNCTION: Final = frozenset({"Description", "Handler", "MemorySize", "Runtime", "Timeout"})
# Seconds. A Lambda ends by its own deadline, so what it has taken may stay hidden until then. A laptop is closed at any time:
# the gateway hides a message for as long as it works on it, again and again, and what it leaves comes back soon: but only when
# the lease of a minute that the dead worker has on its file has run out, else the message would have come in vain.
_HIDDEN_AT_MOST: Final = 75
_ELSEWHERE: Final = {"ZipFile": "def handler(event, context):\n    raise RuntimeError('the gateway runs this function')\n"}


def local_template() -> str:
    """The template, without anything that depends on who synthesizes it or when."""
    with TemporaryDirectory() as scratch:
        app = App(analytics_reporting=False, context={"aws:cdk:bundling-stacks": []}, outdir=scratch)
        data = DataStack(app, "Spass-local-Data", environment=DEV)
        api = ApiStack(app, "Spass-local-Api", environment=DEV, data=data)
        template: TemplateNode = app.synth().get_stack_by_name(data.stack_name).template
        jobs: TemplateNode = json.loads((Path(scratch) / api.jobs.template_file).read_text(encoding="utf-8"))
    template["Parameters"].pop(_PARAMETERS)
    template["Rules"].pop(_RULES)
    stored = {output.pop("Export")["Name"]: output["Value"] for output in template["Outputs"].values()}
    template["Resources"] |= _workers(jobs["Resources"], stored)
    for resource in template["Resources"].values():
        resource.pop("Metadata", None)
        if hidden := resource["Properties"].get("VisibilityTimeout"):
            resource["Properties"]["VisibilityTimeout"] = min(hidden, _HIDDEN_AT_MOST)
    template["Outputs"]["CompactionMachine"] = {"Value": {"Ref": _logical_id(api.jobs.compaction)}}
    template["Description"] = "Spass on the laptop: what is stored, and who works on it. Written by `make template`; do not edit."
    return json.dumps({name: part for name, part in template.items() if part}, indent=2) + "\n"


def _workers(resources: TemplateNode, stored: TemplateNode) -> TemplateNode:
    """Of the workers' stack what works, with references to the stateful stack in place of imports."""
    dropped = {name for name, resource in resources.items() if resource["Type"] not in _WORKS}
    found: TemplateNode = {}
    for name, resource in resources.items():
        if name not in dropped:
            properties = resource["Properties"]
            if resource["Type"] == "AWS::Lambda::Function":
                properties = _function(properties)
            properties.pop("LoggingConfiguration", None)
            properties.pop("Tags", None)
            found[name] = {"Type": resource["Type"], "Properties": _resolved(properties, dropped, stored)}
    return found


def _function(properties: TemplateNode) -> TemplateNode:
    """A function under a name that says which worker it is."""
    (name,) = (tag["Value"] for tag in properties["Tags"] if tag["Key"] == TAG)
    kept = {key: value for key, value in properties.items() if key in _OF_A_FUNCTION}
    return {"FunctionName": f"spass-local-{name}", "Code": _ELSEWHERE, "Role": _ROLE, **kept}


def _resolved(value: object, dropped: set[str], stored: TemplateNode) -> object:
    match value:
        case {"Fn::ImportValue": name}:
            return stored[name]
        case {"Fn::GetAtt": [name, "Arn"]} if name in dropped:
            return _ROLE
        case dict():
            return {key: _resolved(one, dropped, stored) for key, one in value.items()}
        case list():
            return [_resolved(one, dropped, stored) for one in value]
        case _:
            return value


def _logical_id(machine: Machine) -> str:
    logical_id: str = Stack.of(machine).resolve(cast(CfnElement, machine.resource.node.default_child).logical_id)
    return logical_id


if __name__ == "__main__":
    PATH.write_text(local_template(), encoding="utf-8")
