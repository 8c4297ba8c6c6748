"""Calls that a role may try to make: every action of our roles and some that none has, on every kind of key and resource."""

import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from infra.constructs.sandbox import NAME as SANDBOX
from infra.routes import Permission
from infra.workers import WORKERS, Trigger
from spass.core.jobs import WorkKind
from spass.store import keys

from .conftest import ROWS, Deployment
from .iam import Context, Request
from .resolved_roles import ACCOUNT, Resolver, Role

TENANTS: Final = ("acme", "acme-2", "acm", "other")
"""Ids of tenants, of which some begin with others."""

TABLE_ACTIONS: Final = {
    "GetItem": Permission.TABLE_READ,
    "Query": Permission.TABLE_READ,
    "PutItem": Permission.TABLE_WRITE,
    "UpdateItem": Permission.TABLE_WRITE,
    "DeleteItem": Permission.TABLE_WRITE,
    "ConditionCheckItem": Permission.TABLE_WRITE,
    "Scan": None,
    "BatchGetItem": None,
    "BatchWriteItem": None,
}
OBJECT_ACTIONS: Final = {
    "GetObject": Permission.BUCKET_READ,
    "PutObject": Permission.BUCKET_WRITE,
    "PutObjectTagging": Permission.BUCKET_WRITE,
    "DeleteObject": Permission.BUCKET_WRITE,
    "GetObjectVersion": None,
    "DeleteObjectVersion": None,
    "AbortMultipartUpload": None,
}
UPLOAD_ACTIONS: Final = {
    "GetObject": Permission.UPLOADS_READ,
    "GetObjectVersion": Permission.UPLOADS_READ,
    "PutObject": Permission.UPLOADS_WRITE,
    "PutObjectTagging": None,
    "DeleteObject": None,
    "DeleteObjectVersion": None,
}
SCHEDULE_ACTIONS: Final = {
    "GetSchedule": Permission.SCHEDULES_READ,
    "CreateSchedule": Permission.SCHEDULES_WRITE,
    "UpdateSchedule": Permission.SCHEDULES_WRITE,
    "DeleteSchedule": Permission.SCHEDULES_DELETE,
}
QUEUES: Final = {
    Trigger.JOBS: ("QueueArn", Permission.JOBS_SEND),
    Trigger.COMPACTIONS: ("CompactionQueueArn", Permission.COMPACTIONS_SEND),
    Trigger.RUNS: ("RunQueueArn", Permission.RUNS_SEND),
}
TAKES: Final = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
LOGS: Final = ("CreateLogStream", "PutLogEvents")
DELIVERIES: Final = ("CreateLogDelivery", "GetLogDelivery", "UpdateLogDelivery", "DeleteLogDelivery", "ListLogDeliveries")
ATTACHMENT: Final = ("CreateNetworkInterface", "DeleteNetworkInterface", "DescribeNetworkInterfaces", "DescribeSubnets")
_SAMPLES: Final[dict[object, object]] = {str: "x", int: 7}

# Roles without a function, by the beginning of their name.
SCHEDULES_ROLE: Final = "api/SchedulesRole"
SANDBOX_ROLE: Final = "api/SandboxRole"
WRITER: Final = "api/ArchiveWriter"
SENDER: Final = "api/ArchiveSender"
MACHINE: Final = "jobs/CompactionMachineRole"
CLOCK: Final = "jobs/ClockRole"
COPIER: Final = "data/CopiesRole"
LOGGER: Final = "api/ApiRestCloudWatchRole"
OTHERS: Final = (SCHEDULES_ROLE, SANDBOX_ROLE, WRITER, SENDER, MACHINE, CLOCK, LOGGER)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call. A role may make it if it ``holds`` one of ``needs``."""

    request: Request
    needs: frozenset[str]


def holds(role: Role) -> frozenset[str]:
    """Return what the rows of a role's functions give it: their permissions, queues and logs. Another role holds its name."""
    rows = [row for row in ROWS if row.function_name in role.functions]
    if role.functions <= {SANDBOX}:
        return frozenset(name for name in OTHERS if role.name.startswith(name))
    permissions = {str(permission) for row in rows for permission in row.permissions}
    takes = {f"takes-{worker.trigger}" for worker in WORKERS if worker.function_name in role.functions}
    return frozenset(permissions | takes | {f"logs-{function}" for function in role.functions})


def partitions(tenant: str) -> set[str]:
    """Return a partition key of every kind that the library makes for a tenant, also those that are not its own."""
    found: set[str] = set()
    for name, builder in inspect.getmembers(keys, inspect.isfunction):
        parameters = typing.get_type_hints(builder)
        made = parameters.pop("return", None)
        if builder.__module__ == keys.__name__ and (made is keys.Key or name.endswith("_partition")):
            found |= {key.pk if isinstance(key, keys.Key) else key for key in _calls(builder, parameters, tenant)}
    return found


def attempts(deployment: Deployment) -> Iterator[Attempt]:
    """Yield the calls of a deployment."""
    resolver = Resolver(deployment)
    region, environment = deployment.environment.region, deployment.environment.name
    yield from _table(resolver, region)
    yield from _bucket(f"arn:aws:s3:::{resolver.variable('SPASS_BUCKET')}")
    yield from _queues(resolver)
    yield from _schedules(resolver, region)
    yield from _functions(resolver, deployment)
    yield from _keys(resolver, region)
    keys_of = f"arn:aws:ssm:{region}:{ACCOUNT}:parameter/spass"
    yield _attempt("ssm:GetParameters", f"{keys_of}/{environment}/OPENAI_API_KEY", Permission.MODELS)
    yield _attempt("ssm:GetParameters", f"{keys_of}/elsewhere/OPENAI_API_KEY")
    yield _attempt("ssm:GetParametersByPath", f"{keys_of}/{environment}")
    for machine in resolver.resources("AWS::StepFunctions::StateMachine"):
        yield _attempt("states:StartExecution", machine, Permission.COMPACTION_START)
        yield _attempt("states:StopExecution", machine)
    for stream in resolver.resources("AWS::KinesisFirehose::DeliveryStream"):
        yield _attempt("firehose:PutRecord", stream, SENDER)
        yield _attempt("firehose:PutRecordBatch", stream, SENDER)
    for action in ATTACHMENT:
        yield _attempt(f"ec2:{action}", "*", SANDBOX_ROLE)
        of_code = {"lambda:SourceFunctionArn": (resolver.arn(SANDBOX),)}
        yield Attempt(Request(f"ec2:{action}", "*", of_code), frozenset())


def _attempt(action: str, resource: str, *needs: str | None) -> Attempt:
    return Attempt(Request(action, resource), frozenset(str(one) for one in needs if one))


def _calls(builder: Callable[..., keys.Key | str], parameters: dict[str, object], tenant: str) -> Iterable[keys.Key | str]:
    kinds: Iterable[WorkKind | None] = WorkKind if "kind" in parameters else [None]
    for kind in kinds:
        samples = {name: _SAMPLES.get(_plain(of), kind) for name, of in parameters.items()}
        yield builder(**samples | ({"tenant": tenant} if "tenant" in samples else {}))


def _plain(of: object) -> object:
    """Return the type behind a ``NewType``."""
    while isinstance(of, typing.NewType):
        of = of.__supertype__
    return of


def _table(resolver: Resolver, region: str) -> Iterator[Attempt]:
    table = f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{resolver.variable('SPASS_TABLE')}"
    known = set[str]().union(*map(partitions, TENANTS))
    for action, permission in TABLE_ACTIONS.items():
        for key in known | {"", "T", "T#", "T#*#SES#x", "K#x", "X"}:
            leading = {"dynamodb:LeadingKeys": (key,)}
            yield Attempt(Request(f"dynamodb:{action}", table, leading), frozenset({permission} if permission else ()))
        yield _attempt(f"dynamodb:{action}", table, permission)
        yield _attempt(f"dynamodb:{action}", f"{table}-2")
    yield _attempt("dynamodb:DeleteTable", table)


def _bucket(bucket: str) -> Iterator[Attempt]:
    for tenant in TENANTS:
        for folder, actions in (("T", OBJECT_ACTIONS), ("uploads", UPLOAD_ACTIONS)):
            for action, permission in actions.items():
                yield _attempt(f"s3:{action}", f"{bucket}/{folder}/{tenant}/x", permission)
                yield _attempt(f"s3:{action}", f"{bucket}-2/{folder}/{tenant}/x")
    for action in OBJECT_ACTIONS.keys() | UPLOAD_ACTIONS.keys():
        archives = action in {"PutObject", "GetObject", "AbortMultipartUpload"}
        yield _attempt(f"s3:{action}", f"{bucket}/audit/x", WRITER if archives else None)
        yield _attempt(f"s3:{action}", f"{bucket}/x")
    prefixes = ["T/acme/", "T/acme/segments/", "T/acme-2/", "T/", "T/acme", "", "uploads/acme/", "uploads/", "audit/"]
    for prefix in prefixes:
        needs = map(str, (Permission.BUCKET_READ, Permission.UPLOADS_READ, WRITER))
        yield Attempt(Request("s3:ListBucket", bucket, {"s3:prefix": (prefix,)}), frozenset(needs))
    yield _attempt("s3:ListBucket", bucket, Permission.BUCKET_READ, Permission.UPLOADS_READ, WRITER)
    yield _attempt("s3:ListBucketVersions", bucket)
    yield _attempt("s3:GetBucketLocation", bucket, WRITER)
    yield _attempt("s3:ListBucketMultipartUploads", bucket, WRITER)


def _queues(resolver: Resolver) -> Iterator[Attempt]:
    for trigger, (name, permission) in QUEUES.items():
        queue = resolver.exported(name)
        ticks = SCHEDULES_ROLE if trigger is Trigger.RUNS else None
        yield _attempt("sqs:SendMessage", queue, permission, ticks)
        for action in TAKES:
            yield _attempt(f"sqs:{action}", queue, f"takes-{trigger}")
        yield _attempt("sqs:PurgeQueue", queue)
        yield _attempt("sqs:SendMessage", f"{queue}-2")


def _schedules(resolver: Resolver, region: str) -> Iterator[Attempt]:
    (group,) = resolver.resources("AWS::Scheduler::ScheduleGroup")
    name = group.rpartition("/")[2]
    for action, permission in SCHEDULE_ACTIONS.items():
        for of_group, needs in ((name, permission), ("elsewhere", None)):
            yield _attempt(f"scheduler:{action}", f"arn:aws:scheduler:{region}:{ACCOUNT}:schedule/{of_group}/x", needs)
    yield _attempt("scheduler:ListSchedules", "*", Permission.SCHEDULES_READ)
    for role in resolver.roles():
        for service in ("scheduler.amazonaws.com", "lambda.amazonaws.com"):
            is_ours = role.name.startswith(SCHEDULES_ROLE) and service == "scheduler.amazonaws.com"
            holders = [str(Permission.SCHEDULES_WRITE)] if is_ours else []
            yield Attempt(Request("iam:PassRole", role.arn, {"iam:PassedToService": (service,)}), frozenset(holders))
        yield _attempt("iam:PassRole", role.arn)


def _functions(resolver: Resolver, deployment: Deployment) -> Iterator[Attempt]:
    machine = {worker.function_name for worker in WORKERS if worker.trigger is Trigger.COMPACTION}
    clock = {worker.function_name for worker in WORKERS if worker.trigger is Trigger.HOURLY}
    for function in deployment.functions():
        caller = MACHINE if function in machine else CLOCK if function in clock else None
        yield _attempt("lambda:InvokeFunction", resolver.arn(function), caller)
        yield _attempt("lambda:UpdateFunctionCode", resolver.arn(function))
        for action in LOGS:
            yield _attempt(f"logs:{action}", resolver.log_group(function), f"logs-{function}")
    yield _attempt("lambda:InvokeFunction", resolver.arn(SANDBOX), Permission.SANDBOX)
    for action in DELIVERIES:
        yield _attempt(f"logs:{action}", "*", MACHINE)


def _keys(resolver: Resolver, region: str) -> Iterator[Attempt]:
    """The key of KMS, through the services that use it. An environment without a key of its own has none."""
    sends = [str(permission) for _, permission in QUEUES.values()]
    takes = [f"takes-{trigger}" for trigger in QUEUES]
    reads = [Permission.BUCKET_READ, Permission.UPLOADS_READ, WRITER]
    writes = [Permission.BUCKET_WRITE, Permission.UPLOADS_WRITE, WRITER]
    through: dict[str, dict[str | None, Iterable[str]]] = {
        "Decrypt": {"dynamodb": [Permission.TABLE_READ], "s3": reads, "sqs": [*sends, *takes, SCHEDULES_ROLE]},
        "GenerateDataKey": {"s3": writes, "sqs": [*sends, SCHEDULES_ROLE]},
    }
    for key in resolver.resources("AWS::KMS::Key"):
        for action, by_service in through.items():
            for service in ("dynamodb", "s3", "sqs", "lambda", None):
                context = {"kms:ViaService": (f"{service}.{region}.amazonaws.com",)} if service else {}
                yield Attempt(Request(f"kms:{action}", key, context), frozenset(map(str, by_service.get(service, ()))))
        yield _attempt("kms:ScheduleKeyDeletion", key)


@dataclass(frozen=True, slots=True)
class Assumption:
    """A call of ``sts:AssumeRole``. The roles of which ``may`` is true must trust the ``caller``."""

    caller: tuple[str, str]
    request: Request
    may: Callable[[Role], bool]


def assumptions(deployment: Deployment) -> Iterator[Assumption]:
    """Yield calls of services that assume roles, for our account and for others."""
    resolver, region = Resolver(deployment), deployment.environment.region
    (group,) = resolver.resources("AWS::Scheduler::ScheduleGroup")
    machines = [*resolver.resources("AWS::StepFunctions::StateMachine")]
    logs = f"arn:aws:logs:{region}:{ACCOUNT}:log-group:x"
    arns = [
        None,
        group,
        f"{group}-2",
        logs,
        *machines,
        *(arn.replace(ACCOUNT, "444455556666") for arn in (group, logs, *machines)),
    ]
    accounts = [None, ACCOUNT, "444455556666"]

    def named(*names: str) -> Callable[[Role], bool]:
        return lambda role: role.name.startswith(names) if names else False

    for account, arn in itertools.product(accounts, arns):
        is_ours = account == ACCOUNT
        by_service = {
            "lambda": lambda role: bool(role.functions),
            "apigateway": named(LOGGER),
            "scheduler": named(*[SCHEDULES_ROLE] * (is_ours and arn == group), *[CLOCK] * is_ours),
            "states": named(*[MACHINE] * (is_ours and arn in machines)),
            "backup": named(*[COPIER] * is_ours),
            "logs": named(*[SENDER] * (arn == logs)),
            "firehose": named(),
            "ec2": named(),
        }
        context = {name: (value,) for name, value in (("aws:SourceAccount", account), ("aws:SourceArn", arn)) if value}
        for service, may in by_service.items():
            yield _assumption(service, context, may)
    for account in accounts:
        context = {"sts:ExternalId": (account,)} if account else {}
        yield _assumption("firehose", context, named(*[WRITER] * (account == ACCOUNT)))


def _assumption(service: str, context: Context, may: Callable[[Role], bool]) -> Assumption:
    return Assumption(("Service", f"{service}.amazonaws.com"), Request("sts:AssumeRole", "*", context), may)
