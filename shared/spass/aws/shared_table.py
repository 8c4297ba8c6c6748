"""The part of the one table that belongs to no tenant: what backends may take, all tenants together."""

from typing import TYPE_CHECKING

from spass.aws.keys import BACKEND_PREFIX
from spass.aws.table import GuardedTable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class SharedTable(GuardedTable):
    """The keys that begin with ``B#``."""

    def __init__(self, client: "DynamoDBClient", name: str) -> None:
        super().__init__(client, name, BACKEND_PREFIX)
