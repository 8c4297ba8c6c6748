"""The subscriptions that carry calls from the functions' logs into the archive: the last step of a deployment."""

from collections.abc import Iterable, Mapping

from aws_cdk import NestedStack
from constructs import Construct, IDependable

from infra.constructs.archive import AuditArchive
from infra.constructs.function import Function


class SubscriptionsStack(NestedStack):
    """A subscription for the log of each of ``functions``, by name. It is made after everything in ``after``.

    CloudWatch Logs sends a trial message as soon as it makes a subscription. IAM needs some seconds until a new role is in force
    everywhere, and a trial message that fails ends the whole deployment.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        description: str,
        archive: AuditArchive,
        functions: Mapping[str, Function],
        after: Iterable[IDependable],
    ) -> None:
        super().__init__(scope, construct_id, description=description)
        for name, function in functions.items():
            archive.subscribe(self, name, function)
        self.node.add_dependency(*after)
