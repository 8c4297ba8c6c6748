"""Every call that a test of the functions makes is allowed to exactly the role that makes it, in the session of its tenant.

``tests/recorded_rights.py`` records the calls; those tests fail if a function makes one that the file does not have.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from infra.workers import Trigger

from .conftest import Deployment
from .iam import PRINCIPAL_TAG, Context, Policy, Request
from .resolved_roles import ACCOUNT, Resolver, Role
from .role_attempts import QUEUES

RECORDED: Final[Mapping[str, Sequence[str]]] = json.loads(
    (Path(__file__).parent / "recorded_rights.json").read_text(encoding="utf-8")
)
OF_TENANT: Final = {"T#", "T/", "uploads/"}


@pytest.fixture(scope="module")
def resolver(dev: Deployment) -> Resolver:
    return Resolver(dev)


@pytest.fixture(scope="module")
def owns(resolver: Resolver) -> dict[str, Role]:
    """The own role of each function."""
    return {function: role for role in resolver.roles() for function in role.functions}


@pytest.fixture(scope="module")
def twins(resolver: Resolver) -> dict[str, Role]:
    """The role of each function that reaches tenants' data."""
    return {function: role for role in resolver.roles() for function in role.twin_of}


def test_every_call_is_allowed_to_exactly_the_role_that_makes_it(
    resolver: Resolver, owns: dict[str, Role], twins: dict[str, Role]
) -> None:
    for function, rights in RECORDED.items():
        own = Policy(owns[function].statements)
        twin = Policy(twins[function].statements if function in twins else [])
        for right in rights:
            action, _, reached = right.partition(" ")
            request = Request(action, *_reached(resolver, action, reached))
            is_of_tenant = reached in OF_TENANT
            assert twin.allows(_in_session(request, "acme")) == is_of_tenant, f"{function}: {right}"
            assert own.allows(request) != is_of_tenant, f"{function}: {right}"
            assert not twin.allows(_in_session(request, "acme-2")), f"{function}: {right}"


def test_no_twin_has_an_action_that_no_test_uses(twins: dict[str, Role]) -> None:
    used = {right for rights in RECORDED.values() for right in rights}
    granted = {right for role in twins.values() for statement in role.statements for right in _rights(statement)}
    assert granted <= used


def test_every_function_that_assumes_a_role_is_recorded(twins: dict[str, Role]) -> None:
    assert {
        function for function, rights in RECORDED.items() if any(right.partition(" ")[2] in OF_TENANT for right in rights)
    } == {*twins}


def _rights(statement: Mapping[str, object]) -> set[str]:
    """Return the rights of a twin's statement, as the recorder writes them."""
    action, resource = statement["Action"], str(statement["Resource"])
    actions = [action] if isinstance(action, str) else [str(one) for one in list(action)]  # type: ignore[call-overload]
    if actions == ["s3:ListBucket"]:
        return {"s3:ListBucket T/", "s3:ListBucket uploads/"}
    reached = "T#" if actions[0].startswith("dynamodb:") else "uploads/" if "/uploads/" in resource else "T/"
    return {f"{action} {reached}" for action in actions}


def _in_session(request: Request, tenant: str) -> Request:
    return Request(request.action, request.resource, {**request.context, f"{PRINCIPAL_TAG}tenant": (tenant,)})


def _reached(resolver: Resolver, action: str, reached: str) -> tuple[str, Context]:
    """Return a resource of this kind, of the tenant ``acme`` if it is a tenant's, and the condition keys of a call on it."""
    region = resolver.region
    table = f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{resolver.variable('SPASS_TABLE')}"
    bucket = f"arn:aws:s3:::{resolver.variable('SPASS_BUCKET')}"
    queues = {str(trigger): name for trigger, (name, _) in QUEUES.items()}
    match reached:
        case "T#":
            return table, {"dynamodb:LeadingKeys": ("T#acme#RAG",)}
        case "B#":
            return table, {"dynamodb:LeadingKeys": ("B#model#0",)}
        case "T/" | "uploads/" if action == "s3:ListBucket":
            return bucket, {"s3:prefix": (f"{reached}acme/",)}
        case "T/" | "uploads/":
            return f"{bucket}/{reached}acme/x", {}
        case "machine":
            (machine,) = resolver.resources("AWS::StepFunctions::StateMachine")
            return machine, {}
        case "entries" if action == "scheduler:ListSchedules":
            return "*", {}
        case "entries":
            (group,) = resolver.resources("AWS::Scheduler::ScheduleGroup")
            return f"{group.replace('schedule-group', 'schedule')}/x", {}
        case "keys":
            return f"arn:aws:ssm:{region}:{ACCOUNT}:parameter/spass/dev/OPENAI_API_KEY", {}
        case _:
            return resolver.exported(queues[str(Trigger(reached))]), {}
