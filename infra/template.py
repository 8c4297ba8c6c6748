"""Write ``local/template.json`` from the CDK stacks: the storage, the queues and the workers for the laptop's emulator.

Run it with ``python -m infra.template``. A test compares the file with a fresh synthesis.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, cast

from aws_cdk import App, CfnElement, Stack
from constructs import IConstruct

from infra.constructs.function import TAG
from infra.environments import DEV
from infra.stacks.api import ApiStack
from infra.stacks.data import DataStack

PATH: Final = Path(__file__).resolve().parents[1] / "local" / "template.json"

TemplateNode: TypeAlias = dict[str, Any]

# Only a deployment by the CDK needs these: they check the version of its bootstrap stack.
_PARAMETERS: Final = "BootstrapVersion"
_RULES: Final = "CheckBootstrapVersion"
# Resources of the workers' stack that the laptop needs. The emulator does not check roles. Logs go to files and the terminal.
_WORKER_TYPES: Final = frozenset(
    {
        "AWS::Lambda::Function",
        "AWS::Lambda::EventSourceMapping",
        "AWS::StepFunctions::StateMachine",
        "AWS::Scheduler::Schedule",
    }
)
_ROLE: Final = "arn:aws:iam::000000000000:role/nobody-checks"
# The emulator needs only these properties of a function. The gateway runs the function's code (`local/workers.py`).
_FUNCTION_PROPERTIES: Final = frozenset({"Description", "Handler", "MemorySize", "Runtime", "Timeout"})
# A Lambda ends by its deadline, so its message may stay invisible until then. A laptop can stop at any time. So the local worker
# renews a short visibility timeout while it works, and after a crash the message soon becomes visible. The timeout must be longer
# than a worker's lease on its file, which is a minute: before the lease expires, another worker could not take the file.
_MAX_VISIBILITY_TIMEOUT_SECONDS: Final = 75
_PLACEHOLDER_CODE: Final = {"ZipFile": "def handler(event, context):\n    raise RuntimeError('the gateway runs this function')\n"}


def local_template() -> str:
    """Return the template. It is the same on every machine and at any time."""
    with TemporaryDirectory() as scratch:
        app = App(analytics_reporting=False, context={"aws:cdk:bundling-stacks": []}, outdir=scratch)
        data = DataStack(app, "Spass-local-Data", environment=DEV)
        api = ApiStack(app, "Spass-local-Api", environment=DEV, data=data)
        assembly = app.synth()
        template: TemplateNode = assembly.get_stack_by_name(data.stack_name).template
        group = assembly.get_stack_by_name(api.stack_name).template["Resources"][group_id := _logical_id(api.schedules.group)]
        jobs: TemplateNode = json.loads((Path(scratch) / api.jobs.template_file).read_text(encoding="utf-8"))
    template["Parameters"].pop(_PARAMETERS)
    template["Rules"].pop(_RULES)
    stored = {output.pop("Export")["Name"]: output["Value"] for output in template["Outputs"].values()}
    template["Resources"] |= _workers(jobs["Resources"], stored)
    template["Resources"][group_id] = {"Type": group["Type"], "Properties": {}}
    for resource in template["Resources"].values():
        resource.pop("Metadata", None)
        if seconds := resource["Properties"].get("VisibilityTimeout"):
            resource["Properties"]["VisibilityTimeout"] = min(seconds, _MAX_VISIBILITY_TIMEOUT_SECONDS)
    template["Outputs"]["CompactionMachine"] = {"Value": {"Ref": _logical_id(api.jobs.compaction.resource.node.default_child)}}
    template["Outputs"]["ScheduleGroup"] = {"Value": {"Ref": group_id}}
    template["Description"] = "Spass on the laptop: what is stored, and who works on it. Written by `make template`; do not edit."
    return json.dumps({name: part for name, part in template.items() if part}, indent=2) + "\n"


def _workers(resources: TemplateNode, stored: TemplateNode) -> TemplateNode:
    """Return the workers' resources that the laptop needs, with references to the stateful stack instead of imports."""
    dropped = {name for name, resource in resources.items() if resource["Type"] not in _WORKER_TYPES}
    workers: TemplateNode = {}
    for name, resource in resources.items():
        if name not in dropped:
            properties = resource["Properties"]
            if resource["Type"] == "AWS::Lambda::Function":
                properties = _function(properties)
            properties.pop("LoggingConfiguration", None)
            properties.pop("Tags", None)
            workers[name] = {"Type": resource["Type"], "Properties": _resolve(properties, dropped, stored)}
    return workers


def _function(properties: TemplateNode) -> TemplateNode:
    """Return the properties of a worker's function, with the worker's name as its name."""
    (name,) = (tag["Value"] for tag in properties["Tags"] if tag["Key"] == TAG)
    copied = {key: value for key, value in properties.items() if key in _FUNCTION_PROPERTIES}
    return {"FunctionName": f"spass-local-{name}", "Code": _PLACEHOLDER_CODE, "Role": _ROLE, **copied}


def _resolve(value: object, dropped: set[str], stored: TemplateNode) -> object:
    match value:
        case {"Fn::ImportValue": name}:
            return stored[name]
        case {"Fn::GetAtt": [name, "Arn"]} if name in dropped:
            return _ROLE
        case dict():
            return {key: _resolve(one, dropped, stored) for key, one in value.items()}
        case list():
            return [_resolve(one, dropped, stored) for one in value]
        case _:
            return value


def _logical_id(resource: IConstruct | None) -> str:
    element = cast(CfnElement, resource)
    logical_id: str = Stack.of(element).resolve(element.logical_id)
    return logical_id


if __name__ == "__main__":
    PATH.write_text(local_template(), encoding="utf-8")
