"""Calls that assume a role, by services and by the functions' own roles."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from .conftest import Deployment
from .iam import Context, Request
from .resolved_roles import ACCOUNT, Resolver, Role
from .role_attempts import CLOCK, COPIER, LOGGER, MACHINE, SCHEDULES_ROLE, SENDER, WRITER

TAGS: Final[tuple[tuple[Context, bool], ...]] = (
    ({"aws:RequestTag/tenant": ("acme",), "aws:TagKeys": ("tenant",)}, True),
    ({"aws:RequestTag/tenant": ("",), "aws:TagKeys": ("tenant",)}, False),
    ({"aws:RequestTag/tenant": ("acme",), "aws:TagKeys": ("tenant", "other")}, False),
    ({"aws:RequestTag/other": ("acme",), "aws:TagKeys": ("other",)}, False),
    ({}, False),
)
"""The tags of a session, and whether the trust policy of a twin accepts them."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """A call of ``sts:AssumeRole``. The roles of which ``may`` is true must trust the ``caller``."""

    caller: tuple[str, str]
    request: Request
    may: Callable[[Role], bool]


def assumptions(deployment: Deployment) -> Iterator[Assumption]:
    """Yield calls of services that assume roles, for our account and for others."""
    resolver, region = Resolver(deployment), deployment.environment.region
    (group,) = resolver.resources("AWS::Scheduler::ScheduleGroup")
    machines = [*resolver.resources("AWS::StepFunctions::StateMachine")]
    logs = f"arn:aws:logs:{region}:{ACCOUNT}:log-group:x"
    arns = [
        None,
        group,
        f"{group}-2",
        logs,
        *machines,
        *(arn.replace(ACCOUNT, "444455556666") for arn in (group, logs, *machines)),
    ]
    accounts = [None, ACCOUNT, "444455556666"]

    def named(*names: str) -> Callable[[Role], bool]:
        return lambda role: role.name.startswith(names) if names else False

    for account, arn in itertools.product(accounts, arns):
        is_ours = account == ACCOUNT
        by_service = {
            "lambda": lambda role: bool(role.functions),
            "apigateway": named(LOGGER),
            "scheduler": named(*[SCHEDULES_ROLE] * (is_ours and arn == group), *[CLOCK] * is_ours),
            "states": named(*[MACHINE] * (is_ours and arn in machines)),
            "backup": named(*[COPIER] * is_ours),
            "logs": named(*[SENDER] * (arn == logs)),
            "firehose": named(),
            "ec2": named(),
        }
        context = {name: (value,) for name, value in (("aws:SourceAccount", account), ("aws:SourceArn", arn)) if value}
        for service, may in by_service.items():
            yield _assumption(service, context, may)
    for own in resolver.roles():
        for action, (tags, is_accepted) in itertools.product(("sts:AssumeRole", "sts:TagSession"), TAGS):
            yield Assumption(("AWS", own.arn), Request(action, "*", tags), _is_twin(own if is_accepted else None))
    for account in accounts:
        context = {"sts:ExternalId": (account,)} if account else {}
        yield _assumption("firehose", context, named(*[WRITER] * (account == ACCOUNT)))


def _assumption(service: str, context: Context, may: Callable[[Role], bool]) -> Assumption:
    return Assumption(("Service", f"{service}.amazonaws.com"), Request("sts:AssumeRole", "*", context), may)


def _is_twin(own: Role | None) -> Callable[[Role], bool]:
    return lambda role: own is not None and role.arn == own.twin
