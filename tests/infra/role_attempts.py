"""Calls that a role may try to make: every action of our roles and some that none has, on every kind of key and resource."""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from infra.constructs.sandbox import NAME as SANDBOX
from infra.routes import Permission
from infra.workers import WORKERS, Trigger
from spass.core.jobs import WorkKind
from spass.store import keys

from .conftest import ROWS, Deployment
from .iam import Request
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
SHARING: Final = {Permission.MODELS, *(permission for _, permission in QUEUES.values())}
"""Who calls models needs the limits of backends, and who sends work its tenant's share of the workers."""
SHARED_ACTIONS: Final = ("GetItem", "UpdateItem", "DeleteItem")
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
    """A call. A role may make it if it holds one of ``needs``, in a session of the ``tenant`` whose data it reaches, or one of
    ``needs_without_session``."""

    request: Request
    needs: frozenset[str]
    tenant: str | None = None
    needs_without_session: frozenset[str] = frozenset()

    def is_allowed(self, held: frozenset[str], session: str | None) -> bool:
        """Return True if a role that holds this may make the call, in a session of this tenant or in none."""
        in_session = bool(self.needs & held) and self.tenant in (None, session)
        return in_session or bool(self.needs_without_session & held)


def holds(role: Role) -> frozenset[str]:
    """Return what the rows of a role's functions give it: their permissions, queues, logs and twin. A twin holds only what
    reaches tenants' data. Another role holds its name."""
    if role.twin_of:
        return frozenset(f"tenant-{permission}" for permission in _permissions(role.twin_of))
    if role.functions <= {SANDBOX}:
        return frozenset(name for name in OTHERS if role.name.startswith(name))
    permissions = _permissions(role.functions)
    shared = {"shared"} if permissions & SHARING else set[str]()
    takes = {f"takes-{worker.trigger}" for worker in WORKERS if worker.function_name in role.functions}
    logs = {f"logs-{function}" for function in role.functions}
    return frozenset({*map(str, permissions), *shared, *takes, *logs, f"assumes-{role.twin}"})


def sessions(role: Role) -> Sequence[str | None]:
    """Return the tenants of whom the role has sessions."""
    return (*TENANTS, None) if role.twin_of else (None,)


def _permissions(functions: Iterable[str]) -> set[Permission]:
    names = set(functions)
    return {permission for row in ROWS if row.function_name in names for permission in row.permissions}


@cache
def partitions(tenant: str) -> frozenset[str]:
    """Return a partition key of every kind that the library makes for a tenant, also those that are not its own."""
    found: set[str] = set()
    for name, builder in inspect.getmembers(keys, inspect.isfunction):
        parameters = typing.get_type_hints(builder)
        made = parameters.pop("return", None)
        if builder.__module__ == keys.__name__ and (made is keys.Key or name.endswith("_partition")):
            found |= {key.pk if isinstance(key, keys.Key) else key for key in _calls(builder, parameters, tenant)}
    return frozenset(found)


def attempts(deployment: Deployment) -> Iterator[Attempt]:
    """Yield the calls of a deployment, and on the same resources calls that nobody makes."""
    known = list(_known_attempts(deployment))
    unknown: dict[object, Request] = {}
    for one in known:
        service, resource, context = one.request.action.partition(":")[0], one.request.resource, one.request.context
        request = Request(f"{service}:Anything", resource, context)
        unknown[service, resource, *sorted(context.items())] = request
    yield from (Attempt(request, frozenset()) for request in unknown.values())
    yield from known


def _known_attempts(deployment: Deployment) -> Iterator[Attempt]:
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
        yield _attempt("states:StartExecution", f"{machine}-2")
    for stream in resolver.resources("AWS::KinesisFirehose::DeliveryStream"):
        yield _attempt("firehose:PutRecord", stream, SENDER)
        yield _attempt("firehose:PutRecordBatch", stream, SENDER)
        yield _attempt("firehose:PutRecord", f"{stream}-2")
    for group in resolver.resources("AWS::Logs::LogGroup"):
        yield _attempt("logs:DeleteLogStream", group)
    yield _attempt("xray:GetTraceSummaries", "*")
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
    for action, permission in TABLE_ACTIONS.items():
        name = f"dynamodb:{action}"
        for tenant in TENANTS:
            for key in partitions(tenant):
                leading = {"dynamodb:LeadingKeys": (key,)}
                if key.startswith("B#"):
                    yield Attempt(Request(name, table, leading), frozenset({"shared"} if action in SHARED_ACTIONS else ()))
                else:
                    yield Attempt(Request(name, table, leading), _of_tenant(permission), tenant)
        for key in ("", "T", "T#", "T#*#SES#x", "K#x", "X"):
            yield Attempt(Request(name, table, {"dynamodb:LeadingKeys": (key,)}), frozenset())
        yield _attempt(name, table)
        for key in ("T#acme#RAG", "B#model#0"):
            yield Attempt(Request(name, f"{table}-2", {"dynamodb:LeadingKeys": (key,)}), frozenset())
    yield _attempt("dynamodb:DeleteTable", table)


def _bucket(bucket: str) -> Iterator[Attempt]:
    lists = _of_tenant(Permission.BUCKET_READ, Permission.UPLOADS_READ)
    for tenant in TENANTS:
        for folder, actions in (("T", OBJECT_ACTIONS), ("uploads", UPLOAD_ACTIONS)):
            for action, permission in actions.items():
                yield Attempt(Request(f"s3:{action}", f"{bucket}/{folder}/{tenant}/x"), _of_tenant(permission), tenant)
                yield _attempt(f"s3:{action}", f"{bucket}-2/{folder}/{tenant}/x")
            for prefix in (f"{folder}/{tenant}/", f"{folder}/{tenant}/x/"):
                yield Attempt(Request("s3:ListBucket", bucket, {"s3:prefix": (prefix,)}), lists, tenant, frozenset({WRITER}))
    for action in OBJECT_ACTIONS.keys() | UPLOAD_ACTIONS.keys():
        archives = action in {"PutObject", "GetObject", "AbortMultipartUpload"}
        yield _attempt(f"s3:{action}", f"{bucket}/audit/x", WRITER if archives else None)
        yield _attempt(f"s3:{action}", f"{bucket}/x")
    for prefix in ("T/", "T/acme", "", "uploads/", "audit/"):
        yield Attempt(Request("s3:ListBucket", bucket, {"s3:prefix": (prefix,)}), frozenset({WRITER}))
    yield _attempt("s3:ListBucket", bucket, WRITER)
    yield Attempt(Request("s3:ListBucket", f"{bucket}-2", {"s3:prefix": ("T/acme/",)}), frozenset())
    yield _attempt("s3:ListBucketVersions", bucket)
    yield _attempt("s3:GetBucketLocation", bucket, WRITER)
    yield _attempt("s3:ListBucketMultipartUploads", bucket, WRITER)


def _of_tenant(*permissions: Permission | None) -> frozenset[str]:
    return frozenset(f"tenant-{permission}" for permission in permissions if permission)


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
        yield _attempt("sts:AssumeRole", role.arn, f"assumes-{role.arn}")
        yield _attempt("sts:TagSession", role.arn, f"assumes-{role.arn}")


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
    reads = [*_of_tenant(Permission.BUCKET_READ, Permission.UPLOADS_READ), WRITER]
    writes = [*_of_tenant(Permission.BUCKET_WRITE, Permission.UPLOADS_WRITE), WRITER]
    through: dict[str, dict[str | None, Iterable[str]]] = {
        "Decrypt": {
            "dynamodb": [*_of_tenant(Permission.TABLE_READ), "shared"],
            "s3": reads,
            "sqs": [*sends, *takes, SCHEDULES_ROLE],
        },
        "GenerateDataKey": {"s3": writes, "sqs": [*sends, SCHEDULES_ROLE]},
    }
    for key in resolver.resources("AWS::KMS::Key"):
        for action, by_service in through.items():
            for service in ("dynamodb", "s3", "sqs", "lambda", None):
                context = {"kms:ViaService": (f"{service}.{region}.amazonaws.com",)} if service else {}
                yield Attempt(Request(f"kms:{action}", f"{key}-2", context), frozenset())
                yield Attempt(Request(f"kms:{action}", key, context), frozenset(map(str, by_service.get(service, ()))))
        yield _attempt("kms:ScheduleKeyDeletion", key)
