"""The calls of CloudFormation that pass the front of the emulated AWS."""

import hashlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

import pytest

from local.aws_actions import is_allowed

OURS: Final = '{"Resources": {"Schlüssel": {}}}'
EVIL: Final = '{"Resources": {"Evil": {"Type": "AWS::Lambda::Function"}}}'
URL: Final = "http://127.0.0.1/spass-local-bucket/evil.json"


def passes(*fields: tuple[str, str]) -> bool:
    hashes = [hashlib.sha256(OURS.encode()).hexdigest()]
    return is_allowed("cloudformation", "POST", "/", "", None, urlencode(fields).encode(), hashes)


@pytest.mark.parametrize("action", ["CreateStack", "UpdateStack"])
def test_a_stack_has_the_template_of_the_release(action: str) -> None:
    assert passes(("Action", action), ("StackName", "spass-local"), ("TemplateBody", OURS))


@pytest.mark.parametrize(
    "fields",
    [
        [("TemplateBody", EVIL)],
        [("TemplateBody", OURS + " ")],
        [("TemplateBody", EVIL), ("TemplateBody", OURS)],
        [("TemplateBody", OURS), ("TemplateBody", EVIL)],
        [("TemplateURL", URL)],
        [("TemplateBody", ""), ("TemplateURL", URL)],
        [("TemplateBody", ""), ("TemplateBody", OURS), ("TemplateURL", URL)],
        [("UsePreviousTemplate", "true")],
        [("Action", "DescribeStacks")],
    ],
)
def test_a_stack_with_another_template_is_refused(fields: Sequence[tuple[str, str]]) -> None:
    assert not passes(("Action", "CreateStack"), *fields)
    assert not passes(("Action", "UpdateStack"), *fields)


def test_actions_without_a_template_pass_if_the_gateway_uses_them() -> None:
    assert passes(("Action", "DescribeStacks"), ("StackName", "spass-local"))
    assert not passes(("Action", "CreateChangeSet"), ("TemplateBody", OURS))
    assert not passes(("Action", "ValidateTemplate"))
    assert not passes(("StackName", "spass-local"))
