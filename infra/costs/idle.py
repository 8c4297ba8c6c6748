"""What a deployment costs a month while nobody uses it, from its templates.

A type of resource that is neither priced nor known to be free stops the computation: a new one must not be forgotten.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from infra.costs.prices import (
    ALARM_MONTH,
    DASHBOARD_MONTH,
    FREE_DASHBOARDS,
    GB_SECOND,
    INVOCATION,
    KEY_MONTH,
    LOG_GB,
    MACHINE_GB,
    QUEUE_REQUEST,
    READ_UNIT,
    SCHEDULE,
    SNAPSHOT_GB_SECOND,
    WEB_ACL_MONTH,
    WEB_RULE_MONTH,
    WRITE_UNIT,
)
from infra.costs.requests import LAMBDA_LOG, Counted

Properties: TypeAlias = dict[str, Any]
Template: TypeAlias = Mapping[str, Any]

HOURS: Final = 730  # of a month
_MONTH: Final = HOURS * 3600
_POLLERS: Final = 5
"""Lambda keeps at least five pollers for an event source, each of which asks once in 20 s while its queue is empty.
(https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html)"""
_POLL_SECONDS: Final = 20
_SWEEP_SECONDS: Final = 3
_DAYS: Final = 30

FREE: Final = frozenset(
    {
        "AWS::ApiGateway::Account",
        "AWS::ApiGateway::BasePathMapping",
        "AWS::ApiGateway::BasePathMappingV2",
        "AWS::ApiGateway::Deployment",
        "AWS::ApiGateway::DomainName",
        "AWS::ApiGateway::DomainNameV2",
        "AWS::ApiGateway::GatewayResponse",
        "AWS::ApiGateway::Method",
        "AWS::ApiGateway::Resource",
        "AWS::ApiGateway::RestApi",
        "AWS::ApiGateway::Stage",
        "AWS::Backup::BackupPlan",
        "AWS::Backup::BackupSelection",
        "AWS::Backup::BackupVault",
        "AWS::Budgets::Budget",
        "AWS::CloudFormation::Stack",
        "AWS::DynamoDB::Table",
        "AWS::EC2::NetworkAcl",
        "AWS::EC2::RouteTable",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::Subnet",
        "AWS::EC2::SubnetNetworkAclAssociation",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::VPC",
        "AWS::IAM::Policy",
        "AWS::IAM::Role",
        "AWS::KMS::Alias",
        "AWS::KinesisFirehose::DeliveryStream",
        "AWS::Lambda::Alias",
        "AWS::Lambda::LayerVersion",
        "AWS::Lambda::Permission",
        "AWS::Lambda::Version",  # the price of its snapshot is the function's
        "AWS::Logs::LogGroup",
        "AWS::Logs::LogStream",
        "AWS::Logs::QueryDefinition",
        "AWS::Logs::SubscriptionFilter",
        "AWS::Route53::RecordSet",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SNS::Subscription",
        "AWS::SNS::Topic",
        "AWS::SNS::TopicPolicy",
        "AWS::SQS::Queue",
        "AWS::SQS::QueuePolicy",
        "AWS::Scheduler::ScheduleGroup",
        "AWS::StepFunctions::StateMachine",
        "AWS::WAFv2::WebACLAssociation",
    }
)
"""Types that cost nothing while they are idle. What they store is billed by its size."""


class UnknownPrice(Exception):
    """A template has a resource of a type whose price nobody wrote down."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the bill of a month."""

    what: str
    dollars: Decimal


def idle_lines(templates: Sequence[Template], sweep: Counted) -> list[Line]:
    """Return the bill of an idle month. ``sweep`` is what one run of the hourly sweep uses.

    Raises:
        UnknownPrice: a resource is of an unknown type.
    """
    by_type: dict[str, list[Properties]] = {}
    for template in templates:
        for resource in template["Resources"].values():
            by_type.setdefault(resource["Type"], []).append(resource.get("Properties", {}))
    unknown = sorted(by_type.keys() - FREE - _PRICED.keys())
    if unknown:
        raise UnknownPrice(f"{', '.join(unknown)}: write the price into infra/costs/idle.py, or the type into FREE.")
    lines = [line for kind, price in _PRICED.items() if kind in by_type for line in price(by_type[kind])]
    return [*lines, *(line for template in templates for line in _of_sweeps(template, sweep))]


def memory_of(templates: Sequence[Template], tag: str) -> dict[str, int]:
    """Return the memory of each function in MiB, by the value of its ``tag``."""
    return {
        next(one["Value"] for one in properties["Tags"] if one["Key"] == tag): properties["MemorySize"]
        for template in templates
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::Lambda::Function"
        for properties in [resource["Properties"]]
    }


def _alarms(alarms: list[Properties]) -> Iterator[Line]:
    metrics = sum(sum("MetricStat" in query for query in alarm.get("Metrics", [])) or 1 for alarm in alarms)
    yield Line(f"{metrics} metrics of {len(alarms)} alarms", metrics * ALARM_MONTH)


def _dashboards(dashboards: list[Properties]) -> Iterator[Line]:
    billed = max(0, len(dashboards) - FREE_DASHBOARDS)
    yield Line(f"{len(dashboards)} dashboard; an account has {FREE_DASHBOARDS} free", billed * DASHBOARD_MONTH)


def _polls(sources: list[Properties]) -> Iterator[Line]:
    requests = len(sources) * _POLLERS * _MONTH // _POLL_SECONDS
    yield Line(f"{len(sources)} event sources poll their queues: {requests / 1e6:.2f} million requests", requests * QUEUE_REQUEST)


def _schedules(schedules: list[Properties]) -> Iterator[Line]:
    yield Line(f"{len(schedules)} hourly schedule", len(schedules) * HOURS * SCHEDULE)


def _keys(keys: list[Properties]) -> Iterator[Line]:
    yield Line(f"{len(keys)} customer key", len(keys) * KEY_MONTH)


def _web_acls(acls: list[Properties]) -> Iterator[Line]:
    rules = sum(len(acl.get("Rules", [])) for acl in acls)
    yield Line(f"{len(acls)} web ACL with {rules} rules", len(acls) * WEB_ACL_MONTH + rules * WEB_RULE_MONTH)


def _of_functions(functions: list[Properties]) -> Iterator[Line]:
    for function in functions:
        if "TenancyConfig" in function:
            seconds = INVOCATION + _gb(function) * GB_SECOND
            yield Line("a line of code in the sandbox each day", _DAYS * (seconds + _gb(function) * MACHINE_GB))
    snapshots = sum((_gb(function) for function in functions if "SnapStart" in function), Decimal())
    if snapshots:
        yield snapshot_line(snapshots)


def snapshot_line(gb: Decimal) -> Line:
    return Line(f"snapshots of {gb:.1f} GB of functions", gb * _MONTH * SNAPSHOT_GB_SECOND)


_PRICED: Final[Mapping[str, Callable[[list[Properties]], Iterator[Line]]]] = {
    "AWS::CloudWatch::Alarm": _alarms,
    "AWS::CloudWatch::Dashboard": _dashboards,
    "AWS::Lambda::EventSourceMapping": _polls,
    "AWS::Scheduler::Schedule": _schedules,
    "AWS::KMS::Key": _keys,
    "AWS::WAFv2::WebACL": _web_acls,
    "AWS::Lambda::Function": _of_functions,
}


def _of_sweeps(template: Template, counted: Counted) -> Iterator[Line]:
    """Yield the price of each function that a schedule of this template invokes, as if it were the sweep."""
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Scheduler::Schedule":
            function = template["Resources"][resource["Properties"]["Target"]["Arn"]["Fn::GetAtt"][0]]["Properties"]
            once = INVOCATION + _SWEEP_SECONDS * _gb(function) * GB_SECOND
            once += Decimal(str(counted.reads)) * READ_UNIT + Decimal(str(counted.writes)) * WRITE_UNIT
            once += Decimal(counted.log_bytes + LAMBDA_LOG) / 1024**3 * LOG_GB
            yield Line("the hourly sweep", HOURS * once)


def _gb(function: Properties) -> Decimal:
    return Decimal(function["MemorySize"]) / 1024
