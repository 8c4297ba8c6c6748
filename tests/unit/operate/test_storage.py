"""The table and the bucket of a deployed environment."""

from typing import Final

import pytest

from operate.storage import NotDeployed, Storage, read_storage
from tests.unit.operate.answering_aws import NO_STACK, AnsweringAws, function

OUTPUTS: Final = [{"OutputKey": "TableName", "OutputValue": "own"}, {"OutputKey": "BucketName", "OutputValue": "own-objects"}]
STACK: Final = {"StackName": "Spass-prod-Data", "CreationTime": 0, "StackStatus": "CREATE_COMPLETE", "Outputs": OUTPUTS}


def imported(name: str) -> dict[str, str]:
    return {"Fn::ImportValue": f"spass-prod-{name}"}


@pytest.mark.parametrize(
    ("table", "bucket", "expected"),
    [
        (imported("TableName"), imported("BucketName"), Storage("own", "own-objects", "own-objects")),
        ("back", imported("BucketName"), Storage("back", "own-objects", "own-objects")),
        ("back", "objects-of-back", Storage("back", "objects-of-back", "own-objects")),
    ],
    ids=["own", "restored table", "restored table and bucket"],
)
def test_the_names_are_those_that_the_functions_use(table: object, bucket: object, expected: Storage) -> None:
    aws = AnsweringAws()
    aws.answers["DescribeStacks"] = {"Stacks": [STACK]}
    aws.has({}, {"Other": {"Type": "AWS::Lambda::Function"}, "One": function(SPASS_TABLE=table, SPASS_BUCKET=bucket)})
    assert read_storage(aws.account, "prod") == expected


def test_without_functions_the_environments_own_names_are_meant() -> None:
    aws = AnsweringAws()
    aws.answers["DescribeStacks"] = {"Stacks": [STACK]}
    assert read_storage(aws.account, "prod") == Storage("own", "own-objects", "own-objects")


def test_an_environment_that_is_not_deployed_is_named() -> None:
    aws = AnsweringAws()
    aws.answers["DescribeStacks"] = NO_STACK
    with pytest.raises(NotDeployed, match="no stack Spass-prod-Data in this account"):
        read_storage(aws.account, "prod")
