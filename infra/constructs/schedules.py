"""The schedule group of managed agents, and the role of its entries."""

from aws_cdk import Names, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.key import key_statements
from infra.stateful_resources import ScheduleTarget, StatefulQueue


class Schedules(Construct):
    """A group for the schedules of managed agents, and a role that may send ticks to ``queue`` and nothing else. ``key`` is
    the ARN of the key of KMS that encrypts the queue, if it is not SQS's own.

    The gateway writes the entries of the group (``spass/aws/schedules.py``). The table says which ones exist, and the hourly
    sweep creates missing ones, so the group has no state of its own: it goes with its stack, and with it every entry.
    """

    def __init__(self, scope: Construct, construct_id: str, *, queue: StatefulQueue, key: str | None = None) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        self.group = scheduler.CfnScheduleGroup(self, "Group")
        # AWS recommends both conditions against a confused deputy: another account's entry, or an entry outside the group,
        # cannot use the role. https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
        principal = iam.ServicePrincipal(
            "scheduler.amazonaws.com",
            conditions={"StringEquals": {"aws:SourceAccount": stack.account, "aws:SourceArn": self.group.attr_arn}},
        )
        role = iam.Role(self, "Role", assumed_by=principal)
        role.add_to_policy(iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[queue.arn]))
        for statement in key_statements(stack, key, decrypt=["sqs"], encrypt=["sqs"]):
            role.add_to_policy(statement)
        self.target = ScheduleTarget(
            group=self.group.ref, group_parameter=f"referenceto{Names.unique_id(self.group)}Ref", role_arn=role.role_arn
        )
