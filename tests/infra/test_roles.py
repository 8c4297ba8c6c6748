"""Roles make and accept exactly the calls of their rows, according to an evaluator of policies. Wrong policies fail."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.core.ids import TENANT_ID

from .conftest import Deployment, Resource
from .iam import PRINCIPAL_TAG, NotSupported, Policy, Request, Statement, trusts
from .resolved_roles import ACCOUNT, Resolver, Role
from .role_assumptions import assumptions
from .role_attempts import COPIER, LOGGER, Attempt, attempts, holds, sessions
from .role_mutants import mutants

IDS: Final = st.from_regex(TENANT_ID, fullmatch=True)


@pytest.fixture(scope="module")
def environments(deployments: dict[str, Deployment], extended: Deployment) -> dict[str, Deployment]:
    """The deployments, and one with every option: it has a key of KMS."""
    return {**deployments, "extended": extended}


@pytest.fixture(scope="module")
def twin(dev: Deployment) -> Role:
    """The role of tenants' data of a function that reads items and objects."""
    (found,) = [role for role in Resolver(dev).roles() if "rag-documents-read" in role.twin_of]
    return found


@pytest.mark.parametrize("name", ["dev", "prod", "extended"])
def test_a_role_may_make_exactly_the_calls_of_its_rows(environments: dict[str, Deployment], name: str) -> None:
    deployment = environments[name]
    tried = list(attempts(deployment))
    for role in _distinct(Resolver(deployment).roles()):
        assert list(_wrong(role, role.statements, tried)) == [], role.name


@pytest.mark.parametrize("name", ["dev", "prod", "extended"])
def test_a_role_is_assumed_only_by_its_own_service(environments: dict[str, Deployment], name: str) -> None:
    deployment = environments[name]
    tried = list(assumptions(deployment))
    for role in Resolver(deployment).roles():
        assert [one for one in tried if trusts(role.trust, one.caller, one.request) != one.may(role)] == [], role.name


@pytest.mark.parametrize("name", ["dev", "prod", "extended"])
def test_no_function_has_a_policy_of_aws_itself(environments: dict[str, Deployment], name: str) -> None:
    for role in Resolver(environments[name]).roles():
        assert not role.managed or role.name.startswith((COPIER, LOGGER)), role.name


@pytest.mark.parametrize("name", ["dev", "prod", "extended"])
def test_no_policy_of_a_resource_allows_a_role(environments: dict[str, Deployment], name: str) -> None:
    for kind, principal in Resolver(environments[name]).allowing_resources():
        account = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"} if kind == "AWS::KMS::Key" else None  # so that policies of roles count
        assert principal == account or principal.keys() == {"Service"}, kind


def test_a_policy_of_a_resource_is_found_where_it_is(copy: Deployment) -> None:
    allows = {"Effect": "Allow", "Action": "dynamodb:*", "Principal": {"AWS": "x"}}
    table = {"Type": "AWS::DynamoDB::Table", "Properties": {"ResourcePolicy": {"PolicyDocument": {"Statement": [allows]}}}}
    copy.jobs["Resources"]["Table"] = table
    assert ("AWS::DynamoDB::Table", {"AWS": "x"}) in Resolver(copy).allowing_resources()


UNREAD: Final[tuple[Resource, ...]] = (
    {"Type": "AWS::IAM::ManagedPolicy", "Properties": {}},
    {"Type": "AWS::IAM::RolePolicy", "Properties": {}},
    {"Type": "AWS::IAM::Policy", "Properties": {"PolicyDocument": {}, "PolicyName": "x", "Users": ["x"]}},
    {"Type": "AWS::IAM::Policy", "Properties": {"PolicyDocument": {}, "PolicyName": "x", "Roles": [{"Ref": "elsewhere"}]}},
    {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {}, "PermissionsBoundary": "x"}},
)


@pytest.mark.parametrize("resource", UNREAD)
def test_rights_that_the_evaluator_does_not_read_raise(copy: Deployment, resource: Resource) -> None:
    copy.jobs["Resources"]["Unread"] = resource
    with pytest.raises(NotSupported):
        Resolver(copy).roles()


@pytest.mark.parametrize(
    "principal",
    ["*", {"AWS": "*"}, {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, {"AWS": ACCOUNT}, {"Service": "*"}, {"Federated": "x"}],
)
def test_a_trust_in_more_than_one_caller_raises(principal: str | dict[str, str]) -> None:
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
    with pytest.raises(NotSupported):
        trusts([statement], ("Service", "lambda.amazonaws.com"), Request("sts:AssumeRole", "*"))


def test_every_mutant_of_a_policy_is_caught(environments: dict[str, Deployment]) -> None:
    deployment = environments["extended"]
    tried, assumed = list(attempts(deployment)), list(assumptions(deployment))
    tested: set[str] = set()
    for role in Resolver(deployment).roles():
        for mistake, statements in mutants(role.statements):
            if mistake not in tested:  # the same statement of several roles is tested once
                tested.add(mistake)
                assert next(_wrong(role, statements, tried), None), f"{role.name}: {mistake}"
        for mistake, statements in mutants(role.trust):
            tested.add(mistake)
            caught = any(trusts(statements, one.caller, one.request) != one.may(role) for one in assumed)
            assert caught, f"the trust of {role.name}: {mistake}"
    assert len(tested) > 100


@settings(max_examples=100, deadline=None)
@given(tenant=IDS, other=IDS, more=st.text("ab1-", min_size=1, max_size=3))
def test_no_id_of_a_tenant_reaches_the_data_of_another(twin: Role, tenant: str, other: str, more: str) -> None:
    policy = Policy(twin.statements)
    for name in (tenant, other, f"{tenant}{more}", f"a{tenant}", tenant[:-1]):
        for request in _requests_of(twin, name):
            assert policy.allows(_in_session(request, tenant)) == (name == tenant), request


@pytest.mark.parametrize("name", ["*", "acm?", "a*", "${aws:username}", "$", "a/b", "a#b", "a b", ""])
def test_an_id_that_could_widen_a_pattern_is_not_one_of_a_tenant(name: str) -> None:
    assert re.fullmatch(TENANT_ID, name) is None


@pytest.mark.parametrize("name", ["*", "acm?"])
def test_an_id_with_a_wildcard_would_reach_the_data_of_another(twin: Role, name: str) -> None:
    assert all(Policy(twin.statements).allows(_in_session(request, name)) for request in _requests_of(twin, "acme"))


def test_what_the_evaluator_does_not_know_raises() -> None:
    allow = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    unknown: list[Statement] = [
        {**allow, "NotResource": "x"},
        {**allow, "Effect": "Refuse"},
        {**allow, "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}},
        {**allow, "Condition": {"ForAnyValue:StringLike": {"dynamodb:LeadingKeys": "x"}}},
        {**allow, "Condition": {"StringLikeIfExists": {"s3:prefix": "x"}}},
        {**allow, "Resource": "arn:aws:s3:::b/${aws:userid}/*"},
    ]
    for statement in unknown:
        with pytest.raises(NotSupported):
            Policy([statement])


def test_a_condition_compares_as_iam_does() -> None:
    def meets(condition: Statement, **context: tuple[str, ...]) -> bool:
        statement = {"Effect": "Allow", "Action": "x:*", "Resource": "*", "Condition": condition}
        named = {name.replace("_", ":"): values for name, values in context.items()}
        return Policy([statement]).allows(Request("x:Call", "r", named))

    like = {"ForAllValues:StringLike": {"x:keys": "T#a#*"}}
    assert meets(like, x_keys=("T#a#1", "T#a#2"))
    assert not meets(like, x_keys=("T#a#1", "T#b#2"))
    assert meets(like), "ForAllValues is true of a request without the key"
    assert not meets({**like, "Null": {"x:keys": "false"}})
    assert not meets({"StringLike": {"x:keys": "T#a#*"}})
    assert meets({"StringEquals": {"x:one": ["1", "2"]}}, x_one=("2",))
    assert not meets({"StringEquals": {"x:one": "*"}}, x_one=("2",))
    assert meets({"ArnLike": {"x:arn": "arn:aws:lambda:*:*:function:*"}}, x_arn=("arn:aws:lambda:eu:1:function:f:v",))
    assert not meets({"ArnLike": {"x:arn": "arn:aws:*"}}, x_arn=("arn:aws:lambda:eu:1:function:f",))


def test_a_denial_is_stronger_than_any_permission() -> None:
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    deny = {"Effect": "Deny", "Action": "s3:Delete*", "Resource": "*"}
    assert not Policy([allow, deny]).allows(Request("s3:DeleteObject", "arn:aws:s3:::b/x"))
    assert Policy([allow, deny]).allows(Request("s3:GetObject", "arn:aws:s3:::b/x"))


def _requests_of(twin: Role, tenant: str) -> list[Request]:
    """Return a read of an item, of an object and of a list of a tenant."""
    table, objects, bucket = (_listed(statement["Resource"])[0] for statement in twin.statements[:3])
    folder = objects.partition("/")[0]
    return [
        Request("dynamodb:GetItem", table, {"dynamodb:LeadingKeys": (f"T#{tenant}#RAG",)}),
        Request("s3:GetObject", f"{folder}/T/{tenant}/x"),
        Request("s3:ListBucket", bucket, {"s3:prefix": (f"T/{tenant}/",)}),
    ]


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _distinct(roles: Iterable[Role]) -> Iterable[Role]:
    """Return the roles without those that have the policies and the rows' permissions of an earlier one, as twins of other stacks
    do."""
    return {(json.dumps(role.statements), holds(role)): role for role in roles}.values()


def _wrong(role: Role, statements: Iterable[Statement], tried: Iterable[Attempt]) -> Iterator[str]:
    """Yield each call that the statements allow or refuse and that a role must not or must make."""
    policy, held = Policy(statements), holds(role)
    for session in sessions(role):
        for attempt in tried:
            may = attempt.is_allowed(held, session)
            if policy.allows(_in_session(attempt.request, session)) != may:
                yield f"{'must' if may else 'must not'} make {attempt.request} in a session of {session}"


def _in_session(request: Request, tenant: str | None) -> Request:
    if tenant is None:
        return request
    return Request(request.action, request.resource, {**request.context, f"{PRINCIPAL_TAG}tenant": (tenant,)})
