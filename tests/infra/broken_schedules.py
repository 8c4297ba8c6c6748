"""Ways to break the synthesized schedules, each with the rule that must notice it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from . import schedule_rules as rules
from .conftest import Deployment, Resource, actions_of

Break = Callable[[Deployment], object]

_SWEEP: Final = "worker-sweep"
_OTHER: Final = "worker-jobs"


def _group(deployment: Deployment) -> Resource:
    group: Resource = deployment.api["Resources"][rules.group_of(deployment)]
    return group


def _trust(deployment: Deployment) -> dict[str, Any]:
    _, properties = rules.role_of(deployment)
    (statement,) = properties["AssumeRolePolicyDocument"]["Statement"]
    trusted: dict[str, Any] = statement
    return trusted


def _role_statements(deployment: Deployment) -> list[dict[str, Any]]:
    name, _ = rules.role_of(deployment)
    (policy,) = [
        one["Properties"]
        for one in deployment.api["Resources"].values()
        if one["Type"] == "AWS::IAM::Policy" and {"Ref": name} in one["Properties"]["Roles"]
    ]
    statements: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return statements


def _statement(deployment: Deployment, action: str) -> dict[str, Any]:
    """Return the statement of the sweep that allows this action."""
    (statement,) = [one for one in deployment.statements(_SWEEP) if action in actions_of(one)]
    return statement


def _allow(function: str, action: str, resource: object = "*") -> Break:
    """Return the addition of a statement to this function's role."""

    def change(deployment: Deployment) -> None:
        role = deployment.functions()[function]["Role"]["Fn::GetAtt"][0]
        policy = next(
            one["Properties"]
            for _, one in deployment.resources("AWS::IAM::Policy")
            if {"Ref": role} in one["Properties"]["Roles"]
        )
        added = {"Action": action, "Effect": "Allow", "Resource": resource}
        policy["PolicyDocument"]["Statement"].append(added)

    return change


def _change(action: str, **parts: Any) -> Break:
    """Return a change of the statement of the sweep that allows this action. None removes a part."""

    def change(deployment: Deployment) -> None:
        statement = _statement(deployment, action)
        for name, value in parts.items():
            statement.pop(name, None)
            if value is not None:
                statement[name] = value

    return change


def _set_variable(name: str, value: str) -> Break:
    return lambda deployment: deployment.functions()[_SWEEP]["Environment"]["Variables"].update({name: value})


BREAKS: Final[Mapping[rules.Rule, Mapping[str, Break]]] = {
    rules.the_group_belongs_to_its_stack: {
        "a fixed name": lambda deployment: _group(deployment).update(Properties={"Name": "spass"}),
        "retained": lambda deployment: _group(deployment).update(DeletionPolicy="Retain"),
    },
    rules.the_role_may_only_send_to_the_queue_of_runs: {
        "every queue": lambda deployment: _role_statements(deployment)[0].update(Resource="*"),
        "the queue of jobs": lambda deployment: _role_statements(deployment)[0].update(
            Resource={"Fn::ImportValue": "spass-dev-QueueArn"}
        ),
        "every action of the queue": lambda deployment: _role_statements(deployment)[0].update(Action="sqs:*"),
        "another statement": lambda deployment: _role_statements(deployment).append(
            {"Action": "lambda:InvokeFunction", "Effect": "Allow", "Resource": "*"}
        ),
        "a managed policy": lambda deployment: rules.role_of(deployment)[1].update(
            ManagedPolicyArns=["arn:aws:iam::aws:policy/AmazonSQSFullAccess"]
        ),
        "an inline policy": lambda deployment: rules.role_of(deployment)[1].update(Policies=[]),
    },
    rules.only_entries_of_the_group_assume_the_role: {
        "anybody": lambda deployment: _trust(deployment).update(Principal={"AWS": "*"}),
        "another service": lambda deployment: _trust(deployment).update(Principal={"Service": "events.amazonaws.com"}),
        "every account": lambda deployment: _trust(deployment)["Condition"]["StringEquals"].pop("aws:SourceAccount"),
        "every group": lambda deployment: _trust(deployment)["Condition"]["StringEquals"].pop("aws:SourceArn"),
        "a pattern": lambda deployment: _trust(deployment).update(Condition={"ArnLike": {"aws:SourceArn": "arn:*"}}),
    },
    rules.functions_reach_entries_as_their_rows_say: {
        "every group": _change("scheduler:GetSchedule", Resource="arn:aws:scheduler:*:*:schedule/*/*"),
        "every resource": _change("scheduler:DeleteSchedule", Resource="*"),
        "another function": _allow(_OTHER, "scheduler:CreateSchedule"),
        "a function that lists": _allow(_OTHER, "scheduler:ListSchedules"),
        "groups": _allow(_SWEEP, "scheduler:DeleteScheduleGroup"),
    },
    rules.writers_pass_only_this_role_and_only_to_the_scheduler: {
        "every role": _change("iam:PassRole", Resource="*"),
        "to every service": _change("iam:PassRole", Condition=None),
        "to Lambda": _change("iam:PassRole", Condition={"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}}),
        "another function": _allow(_OTHER, "iam:PassRole"),
        "not at all": _change("iam:PassRole", Action="iam:GetRole"),
    },
    rules.functions_name_the_group_and_the_role: {
        "another group": _set_variable("SPASS_SCHEDULE_GROUP", "default"),
        "another role": _set_variable("SPASS_SCHEDULE_ROLE", "arn:aws:iam::000000000000:role/admin"),
    },
}
