"""Rules for the synthesized schedules of managed agents. Each yields the violations in a deployment, in words."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from infra.routes import Permission

from .conftest import ROWS, Deployment, Resource, actions_of, statements_of

Rule = Callable[[Deployment], Iterator[str]]

QUEUE: Final = "RunQueueArn"
ENTRY_ACTIONS: Final = {
    "scheduler:CreateSchedule": Permission.SCHEDULES_WRITE,
    "scheduler:UpdateSchedule": Permission.SCHEDULES_WRITE,
    "scheduler:DeleteSchedule": Permission.SCHEDULES_DELETE,
    "scheduler:GetSchedule": Permission.SCHEDULES_READ,
}
"""The actions on entries of the group, with the permission that grants each."""
LIST: Final = "scheduler:ListSchedules"


def group_of(deployment: Deployment) -> str:
    """Return the logical id of the schedule group."""
    ((name, _),) = deployment.resources("AWS::Scheduler::ScheduleGroup")
    return name


def role_of(deployment: Deployment) -> tuple[str, Resource]:
    """Return the logical id and the properties of the role that entries of the group have."""
    variables = next(iter(deployment.functions().values()))["Environment"]["Variables"]
    name = resolve(deployment, variables["SPASS_SCHEDULE_ROLE"])["Fn::GetAtt"][0]
    properties: Resource = deployment.api["Resources"][name]["Properties"]
    return name, properties


def resolve(deployment: Deployment, value: Any) -> Any:
    """Return ``value`` of a nested stack with its parameters replaced by the parent's arguments."""
    match value:
        case {"Ref": str(name)} if not name.startswith("AWS::") and name not in deployment.api["Resources"]:
            return deployment.argument(name)
        case dict():
            return {key: resolve(deployment, one) for key, one in value.items()}
        case list():
            return [resolve(deployment, one) for one in value]
        case _:
            return value


def entries(deployment: Deployment) -> dict[str, Any]:
    """Return the resource of a policy that means every entry of the group and nothing else."""
    arn = ["arn:", {"Ref": "AWS::Partition"}, f":scheduler:{deployment.environment.region}:", {"Ref": "AWS::AccountId"}]
    return {"Fn::Join": ["", [*arn, ":schedule/", {"Ref": group_of(deployment)}, "/*"]]}


def _queue(deployment: Deployment) -> dict[str, str]:
    return {"Fn::ImportValue": f"spass-{deployment.environment.name}-{QUEUE}"}


def _key_of_queue(deployment: Deployment, action: str) -> dict[str, object]:
    through = {"Fn::Join": ["", [f"sqs.{deployment.environment.region}.", {"Ref": "AWS::URLSuffix"}]]}
    return {
        "Action": action,
        "Condition": {"StringEquals": {"kms:ViaService": [through]}},
        "Effect": "Allow",
        "Resource": {"Fn::ImportValue": f"spass-{deployment.environment.name}-KeyArn"},
    }


def the_group_belongs_to_its_stack(deployment: Deployment) -> Iterator[str]:
    """A group with a fixed name or a retained one would keep firing into a deployment that is gone."""
    group = deployment.api["Resources"].get(group_of(deployment))
    if group is None:
        yield "the group is not in the stateless stack"
        return
    if "Name" in group.get("Properties", {}):
        yield "the group has a fixed name"
    if group.get("DeletionPolicy", "Delete") != "Delete":
        yield "the group outlives its stack"


def the_role_may_only_send_to_the_queue_of_runs(deployment: Deployment) -> Iterator[str]:
    name, properties = role_of(deployment)
    if extra := properties.keys() - {"AssumeRolePolicyDocument", "Tags"}:
        yield f"the role has {sorted(extra)}"
    allowed: list[object] = [{"Action": "sqs:SendMessage", "Effect": "Allow", "Resource": _queue(deployment)}]
    if deployment.environment.key == "customer":
        allowed += [_key_of_queue(deployment, action) for action in ("kms:Decrypt", "kms:GenerateDataKey")]
    if (statements := statements_of(deployment.api, name)) != allowed:
        yield f"the role allows {statements}"


def only_entries_of_the_group_assume_the_role(deployment: Deployment) -> Iterator[str]:
    _, properties = role_of(deployment)
    group = {"Fn::GetAtt": [group_of(deployment), "Arn"]}
    trusted = {
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}, "aws:SourceArn": group}},
        "Effect": "Allow",
        "Principal": {"Service": "scheduler.amazonaws.com"},
    }
    if (statements := properties["AssumeRolePolicyDocument"]["Statement"]) != [trusted]:
        yield f"the role trusts {statements}"


def functions_reach_entries_as_their_rows_say(deployment: Deployment) -> Iterator[str]:
    for function, statement in _statements(deployment):
        wanted = _permissions(function)
        for action in actions_of(statement):
            if not action.startswith("scheduler:"):
                continue
            resource = resolve(deployment, statement["Resource"])
            if action == LIST:
                if Permission.SCHEDULES_READ not in wanted or resource != "*":
                    yield f"{function} may list {resource}"
            elif ENTRY_ACTIONS.get(action) not in wanted or not _equal(resource, entries(deployment)):
                yield f"{function} may {action} on {resource}"


def writers_pass_only_this_role_and_only_to_the_scheduler(deployment: Deployment) -> Iterator[str]:
    role = {"Fn::GetAtt": [role_of(deployment)[0], "Arn"]}
    condition = {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}}
    passers = set()
    for function, statement in _statements(deployment):
        if "iam:PassRole" in actions_of(statement):
            passers.add(function)
            if resolve(deployment, statement["Resource"]) != role:
                yield f"{function} may pass {statement['Resource']}"
            if statement.get("Condition") != condition:
                yield f"{function} may pass a role if {statement.get('Condition')}"
    writers = {row.function_name for row in ROWS if Permission.SCHEDULES_WRITE in row.permissions}
    for function in sorted(passers ^ writers):
        yield f"{function} passes a role without writing schedules, or writes them without passing a role"


def functions_name_the_group_and_the_role(deployment: Deployment) -> Iterator[str]:
    wanted = {
        "SPASS_SCHEDULE_GROUP": {"Ref": group_of(deployment)},
        "SPASS_SCHEDULE_ROLE": {"Fn::GetAtt": [role_of(deployment)[0], "Arn"]},
    }
    for name, function in deployment.functions().items():
        for variable, value in wanted.items():
            if resolve(deployment, function["Environment"]["Variables"].get(variable)) != value:
                yield f"{name} has another {variable}"


RULES: Final[tuple[Rule, ...]] = (
    the_group_belongs_to_its_stack,
    the_role_may_only_send_to_the_queue_of_runs,
    only_entries_of_the_group_assume_the_role,
    functions_reach_entries_as_their_rows_say,
    writers_pass_only_this_role_and_only_to_the_scheduler,
    functions_name_the_group_and_the_role,
)


def _statements(deployment: Deployment) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, statement) for name in deployment.functions() for statement in deployment.statements(name))


def _permissions(function: str) -> set[Permission]:
    return {permission for row in ROWS if row.function_name == function for permission in row.permissions}


def _equal(one: object, other: object) -> bool:
    return json.dumps(_joined(one)) == json.dumps(_joined(other))


def _joined(value: object) -> object:
    """Return a join with adjacent texts put together, because the CDK splits them differently in each stack."""
    match value:
        case {"Fn::Join": ["", [*parts]]}:
            joined: list[object] = []
            for part in parts:
                if isinstance(part, str) and joined and isinstance(joined[-1], str):
                    joined[-1] += part
                else:
                    joined.append(part)
            return joined
        case _:
            return value
