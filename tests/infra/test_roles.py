"""What each role may do and who may assume it, by an evaluator of policies, and mutants of their conditions."""

from collections.abc import Iterable, Iterator

import pytest

from .conftest import Deployment
from .iam import NotSupported, Policy, Request, Statement, trusts
from .resolved_roles import Resolver
from .role_attempts import Attempt, assumptions, attempts, holds
from .role_mutants import mutants


@pytest.fixture(scope="module")
def environments(deployments: dict[str, Deployment], extended: Deployment) -> dict[str, Deployment]:
    """The deployments, and one with every option: it has a key of KMS."""
    return {**deployments, "extended": extended}


@pytest.mark.parametrize("name", ["dev", "prod", "extended"])
def test_a_role_may_make_exactly_the_calls_of_its_rows(environments: dict[str, Deployment], name: str) -> None:
    deployment = environments[name]
    tried = list(attempts(deployment))
    for role in Resolver(deployment).roles():
        assert list(_wrong(role.statements, tried, holds(role))) == [], role.name


@pytest.mark.parametrize("name", ["dev", "prod", "extended"])
def test_a_role_is_assumed_only_by_its_own_service(environments: dict[str, Deployment], name: str) -> None:
    deployment = environments[name]
    tried = list(assumptions(deployment))
    for role in Resolver(deployment).roles():
        assert [one for one in tried if trusts(role.trust, one.caller, one.request) != one.may(role)] == [], role.name


def test_every_mutant_of_a_condition_is_caught(environments: dict[str, Deployment]) -> None:
    deployment = environments["extended"]
    tried, assumed = list(attempts(deployment)), list(assumptions(deployment))
    survivors: list[str] = []
    number = 0
    for role in Resolver(deployment).roles():
        for mistake, statements in mutants(role.statements):
            number += 1
            if next(_wrong(statements, tried, holds(role)), None) is None:
                survivors.append(f"{role.name}: {mistake}")
        for mistake, statements in mutants(role.trust):
            number += 1
            if all(trusts(statements, one.caller, one.request) == one.may(role) for one in assumed):
                survivors.append(f"the trust of {role.name}: {mistake}")
    assert survivors == []
    assert number > 50


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


def _wrong(statements: Iterable[Statement], tried: Iterable[Attempt], held: frozenset[str]) -> Iterator[str]:
    policy = Policy(statements)
    for attempt in tried:
        if policy.allows(attempt.request) != bool(attempt.needs & held):
            yield f"{'must' if attempt.needs & held else 'must not'} make {attempt.request}"
