"""Deploy an assembly with the CDK's command line, and read what is deployed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from operate import make
from operate.account import Account
from operate.assembly import release_of

WATCHED: Final = ("ServerErrors", "FunctionErrors", "AuditNotStored")
"""The alarms that roll a release back: errors that clients see, errors of functions, and calls whose cost is not recorded."""
WATCHED_MINUTES: Final = 10
_HASH: Final = 8
"""The characters that the CDK adds to a logical id."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """The alarms that roll a deployment back, and those of the three that cannot, because they are raised before it."""

    arns: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """Return the options of `cdk deploy`. CloudFormation keeps triggers for later updates, so none are removed."""
        if not self.arns:
            return ["--rollback-trigger-alarm-arns", "none"]
        return ["--rollback-trigger-alarm-arns", *self.arns, "--monitoring-time-minutes", str(WATCHED_MINUTES)]


def read_release(account: Account, stack: str) -> str | None:
    """Return the name of the release that runs, or None if nothing is deployed or it is of a time when it had none."""
    account.forget()
    return release_of(account.deployed(stack))


def read_triggers(account: Account, stack: str) -> Triggers:
    """Return the alarms of the deployed stack that roll a deployment back.

    An alarm that is raised already does not say whether the deployment is at fault, and would roll back the one that mends it.
    """
    if not account.deployed(stack):
        return Triggers()
    names = {
        resource["PhysicalResourceId"]: name
        for resource in account.items("cloudformation", "list_stack_resources", "StackResourceSummaries", {"StackName": stack})
        for name in WATCHED
        if resource["ResourceType"] == "AWS::CloudWatch::Alarm" and resource["LogicalResourceId"][:-_HASH] == f"Monitoring{name}"
    }
    if not names:
        return Triggers()
    alarms = account.call("cloudwatch", "describe_alarms", {"AlarmNames": sorted(names)})["MetricAlarms"]
    quiet = [alarm for alarm in alarms if alarm["StateValue"] != "ALARM"]
    return Triggers(
        tuple(alarm["AlarmArn"] for alarm in quiet),
        tuple(names[alarm["AlarmName"]] for alarm in quiet),
        tuple(names[alarm["AlarmName"]] for alarm in alarms if alarm not in quiet),
    )


def read_url(account: Account, stack: str) -> str:
    """Return the URL of the deployed gateway."""
    return (account.outputs(stack) or {})["Url"]


def deploy(folder: Path, stacks: list[str], triggers: Triggers | None = None) -> bool:
    """Deploy these stacks of the assembly in ``folder``, in their order, and no others. Return True if it succeeded."""
    options = ["--app", str(folder), "--exclusively", "--require-approval", "never"]
    return make.run("cdk", ["deploy", *stacks, *options, *(triggers.arguments if triggers else [])]) == 0
