"""The subscriptions that send calls from the functions' logs to the audit archive. A deployment creates them last."""

from collections.abc import Iterable

from aws_cdk import NestedStack
from constructs import Construct, IDependable

from infra.constructs.archive import AuditArchive
from infra.constructs.function import Function


class SubscriptionsStack(NestedStack):
    """A subscription for the log of each function in ``functions``. CloudFormation creates it after all constructs in ``after``.

    CloudWatch Logs sends a test message when it creates a subscription. IAM needs some seconds until a new role is in force
    everywhere, and if the test message fails, the whole deployment fails.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        description: str,
        archive: AuditArchive,
        functions: Iterable[Function],
        after: Iterable[IDependable],
    ) -> None:
        super().__init__(scope, construct_id, description=description)
        for function in functions:
            archive.subscribe(self, function.node.id, function)
        self.node.add_dependency(*after)
