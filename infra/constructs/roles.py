"""Two roles per set of permissions: exactly the actions that its routes need, on exactly this deployment's resources.

The function's own role reaches what does not belong to a tenant: limits of backends, queues, models, logs. Only its twin
reaches tenants' data. A session of the twin needs a tag with the tenant's id, and reaches the data of that tenant.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.config_files import bedrock_models, gateway_file
from infra.constructs.acknowledge import acknowledge
from infra.constructs.bedrock import bedrock_access
from infra.constructs.bucket import UPLOADS
from infra.constructs.key import key_statements
from infra.routes import Permission
from infra.stateful_resources import ScheduleTarget, StatefulResources

_TABLE_ACTIONS: Final[Mapping[Permission, tuple[str, ...]]] = {
    Permission.TABLE_READ: ("dynamodb:GetItem", "dynamodb:Query"),
    Permission.TABLE_WRITE: (
        "dynamodb:PutItem",
        "dynamodb:UpdateItem",
        "dynamodb:DeleteItem",
        "dynamodb:ConditionCheckItem",
    ),
}
_OBJECT_ACTIONS: Final[Mapping[Permission, tuple[str, ...]]] = {
    Permission.BUCKET_READ: ("s3:GetObject",),
    # The gateway tags a transient object in the PUT itself, for the bucket's lifecycle rule.
    Permission.BUCKET_WRITE: ("s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject"),
}
_UPLOAD_ACTIONS: Final[Mapping[Permission, tuple[str, ...]]] = {
    # A presigned form has the permissions of its signer.
    Permission.UPLOADS_WRITE: ("s3:PutObject",),
    Permission.UPLOADS_READ: ("s3:GetObject", "s3:GetObjectVersion"),
}
_SCHEDULE_ACTIONS: Final[Mapping[Permission, tuple[str, ...]]] = {
    Permission.SCHEDULES_READ: ("scheduler:GetSchedule",),
    Permission.SCHEDULES_WRITE: ("scheduler:CreateSchedule", "scheduler:UpdateSchedule"),
    Permission.SCHEDULES_DELETE: ("scheduler:DeleteSchedule",),
}
_SENDS: Final = frozenset({Permission.JOBS_SEND, Permission.COMPACTIONS_SEND, Permission.RUNS_SEND})
# Who calls models needs the limits of backends, and who sends work its tenant's share of the workers.
_SHARED: Final = _SENDS | {Permission.MODELS}
_SHARED_ACTIONS: Final = ("dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem")
_SHARED_KEYS: Final = "B#*"
_TENANT: Final = "${aws:PrincipalTag/tenant}"
# The services that use the key of KMS for a caller with one of these permissions (constructs/key.py).
_TENANT_DECRYPTING: Final[Mapping[str, frozenset[Permission]]] = {
    "dynamodb": frozenset({Permission.TABLE_READ, Permission.TABLE_WRITE}),
    "s3": frozenset({Permission.BUCKET_READ, Permission.UPLOADS_READ}),
}
_TENANT_ENCRYPTING: Final[Mapping[str, frozenset[Permission]]] = {
    "s3": frozenset({Permission.BUCKET_WRITE, Permission.UPLOADS_WRITE})
}
_DECRYPTING: Final[Mapping[str, frozenset[Permission]]] = {"dynamodb": _SHARED, "sqs": _SENDS}
_ENCRYPTING: Final[Mapping[str, frozenset[Permission]]] = {"sqs": _SENDS}


@dataclass(frozen=True, slots=True)
class FunctionRole:
    """The roles of functions. ``twin`` is the ARN of the one that reaches tenants' data, if they need any."""

    own: iam.Role
    twin: str | None


class Roles(Construct):
    """Create the roles of each set of permissions.

    ``schedules`` are the group whose entries roles may write, and the role that they may pass to EventBridge Scheduler.
    ``keys_path`` is the SSM path of the provider keys. ``sandbox`` is the ARN of the function that roles may invoke to run code.
    ``compaction`` is the ARN of the state machine that roles may start.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stored: StatefulResources,
        schedules: ScheduleTarget,
        keys_path: str,
        sandbox: str,
        compaction: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        self._table = stack.format_arn(service="dynamodb", resource="table", resource_name=stored.table)
        self._bucket = f"arn:{stack.partition}:s3:::{stored.bucket}"
        self._queues = {
            Permission.JOBS_SEND: stored.jobs.arn,
            Permission.COMPACTIONS_SEND: stored.compactions.arn,
            Permission.RUNS_SEND: stored.runs.arn,
        }
        self._key = stored.key
        self._schedule_role = schedules.role_arn
        self._schedules = stack.format_arn(service="scheduler", resource="schedule", resource_name=f"{schedules.group}/*")
        self._sandbox = sandbox
        self._compaction = compaction
        self._keys = stack.format_arn(service="ssm", resource="parameter", resource_name=f"{keys_path.strip('/')}/*")
        self._bedrock = bedrock_access(stack, bedrock_models(gateway_file()))
        self._roles: dict[frozenset[Permission], FunctionRole] = {}
        acknowledge(
            self,
            {
                wildcard_finding(
                    stack, f"{self._bucket}/T/{_TENANT}/*"
                ): "The objects of the tenant that the tag of the session names.",
                wildcard_finding(
                    stack, f"{self._bucket}/{UPLOADS}{_TENANT}/*"
                ): "The uploaded files of the tenant that the tag of the session names.",
                wildcard_finding(
                    stack, self._keys
                ): "The provider keys of this environment and nothing else; gateway.yaml names them.",
                wildcard_finding(stack, self._schedules).replace(
                    _flat(stack.resolve(schedules.group)), f"<{schedules.group_parameter}>"
                ): "The entries of this environment's group and nothing else; the gateway names each by a hash.",
                wildcard_finding(
                    stack, "*"
                ): "ListSchedules has no resource in IAM. The sweep compares the entries of its group with the table.",
                **{wildcard_finding(stack, resource): reason for resource, reason in self._bedrock.wildcards.items()},
            },
        )

    def role(self, permissions: frozenset[Permission]) -> FunctionRole:
        """Return the roles with exactly these permissions. Callers add the right to write to the functions' log groups."""
        if permissions not in self._roles:
            self._roles[permissions] = self._make(permissions)
        return self._roles[permissions]

    def _make(self, permissions: frozenset[Permission]) -> FunctionRole:
        name = "".join(part.capitalize() for one in sorted(permissions) for part in one.split("-")) or "Nothing"
        own = iam.Role(self, name, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        for statement in self._own_statements(permissions):
            own.add_to_policy(statement)
        statements = self._tenant_statements(permissions)
        if not statements:
            return FunctionRole(own, None)
        # Inline, because a policy of its own would be one more resource.
        twin = iam.Role(
            self,
            f"{name}Twin",
            description="Reaches the data of the tenant that the tag of the session names",
            assumed_by=_sessions_with_tenant(own),
            inline_policies={"TenantData": iam.PolicyDocument(statements=statements)},
        )
        own.add_to_policy(iam.PolicyStatement(actions=["sts:AssumeRole", "sts:TagSession"], resources=[twin.role_arn]))
        return FunctionRole(own, twin.role_arn)

    def _tenant_statements(self, permissions: frozenset[Permission]) -> list[iam.PolicyStatement]:
        """Return the statements of a twin. The keys of each begin with the tenant that the session's tag names."""
        statements: list[iam.PolicyStatement] = []
        if table := _actions(_TABLE_ACTIONS, permissions):
            statements.append(self._on_keys(table, f"T#{_TENANT}#*"))
        if objects := _actions(_OBJECT_ACTIONS, permissions):
            statements.append(iam.PolicyStatement(actions=objects, resources=[f"{self._bucket}/T/{_TENANT}/*"]))
        if uploads := _actions(_UPLOAD_ACTIONS, permissions):
            statements.append(iam.PolicyStatement(actions=uploads, resources=[f"{self._bucket}/{UPLOADS}{_TENANT}/*"]))
        if permissions & {Permission.BUCKET_READ, Permission.UPLOADS_READ}:
            # A read of a missing object has no prefix, so S3 answers 403 and not 404 (spass/aws/bucket.py).
            prefixes = [f"T/{_TENANT}/*", f"{UPLOADS}{_TENANT}/*"]
            statements.append(
                iam.PolicyStatement(
                    actions=["s3:ListBucket"], resources=[self._bucket], conditions={"StringLike": {"s3:prefix": prefixes}}
                )
            )
        return [*statements, *self._key_statements(permissions, _TENANT_DECRYPTING, _TENANT_ENCRYPTING)]

    def _own_statements(self, permissions: frozenset[Permission]) -> list[iam.PolicyStatement]:
        statements: list[iam.PolicyStatement] = []
        if permissions & _SHARED:
            statements.append(self._on_keys(_SHARED_ACTIONS, _SHARED_KEYS))
        if Permission.MODELS in permissions:
            statements.append(iam.PolicyStatement(actions=["ssm:GetParameters"], resources=[self._keys]))
            statements += self._bedrock.statements
        if queues := [arn for permission, arn in self._queues.items() if permission in permissions]:
            statements.append(iam.PolicyStatement(actions=["sqs:SendMessage"], resources=queues))
        if schedules := _actions(_SCHEDULE_ACTIONS, permissions):
            statements.append(iam.PolicyStatement(actions=schedules, resources=[self._schedules]))
        if Permission.SCHEDULES_READ in permissions:
            statements.append(iam.PolicyStatement(actions=["scheduler:ListSchedules"], resources=["*"]))
        if Permission.SCHEDULES_WRITE in permissions:
            statements.append(
                iam.PolicyStatement(
                    actions=["iam:PassRole"],
                    resources=[self._schedule_role],
                    conditions={"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}},
                )
            )
        if Permission.COMPACTION_START in permissions and self._compaction:
            statements.append(iam.PolicyStatement(actions=["states:StartExecution"], resources=[self._compaction]))
        if Permission.SANDBOX in permissions:
            statements.append(iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[self._sandbox]))
        return [*statements, *self._key_statements(permissions, _DECRYPTING, _ENCRYPTING)]

    def _on_keys(self, actions: Iterable[str], pattern: str) -> iam.PolicyStatement:
        """Allow ``actions`` on items whose partition keys are like ``pattern``. Without ``Null``, a call that names no item would
        pass."""
        conditions = {
            "ForAllValues:StringLike": {"dynamodb:LeadingKeys": [pattern]},
            "Null": {"dynamodb:LeadingKeys": "false"},
        }
        return iam.PolicyStatement(actions=[*actions], resources=[self._table], conditions=conditions)

    def _key_statements(
        self,
        permissions: frozenset[Permission],
        decrypting: Mapping[str, frozenset[Permission]],
        encrypting: Mapping[str, frozenset[Permission]],
    ) -> list[iam.PolicyStatement]:
        decrypt, encrypt = (
            [service for service, needing in table.items() if needing & permissions] for table in (decrypting, encrypting)
        )
        return key_statements(Stack.of(self), self._key, decrypt=decrypt, encrypt=encrypt)


def _sessions_with_tenant(role: iam.Role) -> iam.IPrincipal:
    """Return the sessions that ``role`` starts with the tag ``tenant`` and no other one.

    (https://docs.aws.amazon.com/IAM/latest/UserGuide/id_session-tags.html#id_session-tags_permissions-required)
    """
    conditions = {
        "StringLike": {"aws:RequestTag/tenant": "?*"},
        "ForAllValues:StringEquals": {"aws:TagKeys": ["tenant"]},
    }
    return iam.SessionTagsPrincipal(iam.ArnPrincipal(role.role_arn).with_conditions(conditions))


def wildcard_finding(stack: Stack, resource: str) -> str:
    """Return the id with which the security rules report a resource with a wildcard in a policy of this stack."""
    return f"AwsSolutions-IAM5[Resource::{_flat(stack.resolve(resource))}]"


def _flat(value: object) -> str:
    match value:
        case {"Fn::Join": ["", [*parts]]}:
            return "".join(_flat(part) for part in parts)
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::ImportValue": name}:
            return str(name)
        case _:
            return re.sub(r"\$\{([^}]*)\}", r"<\1>", str(value))  # a variable of the policy


def _actions(table: Mapping[Permission, tuple[str, ...]], permissions: frozenset[Permission]) -> list[str]:
    return [action for permission, actions in table.items() if permission in permissions for action in actions]
