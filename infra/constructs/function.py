"""The construct of every Lambda function."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from aws_cdk import Duration, RemovalPolicy, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.layer import ARCHITECTURE, RUNTIME, Layers

TAG: Final = "spass:function"
SHORT_TIMEOUT: Final = Duration.seconds(29)
LONG_TIMEOUT: Final = Duration.minutes(15)

_STREAMING_VARIABLES: Final = {
    "AWS_LAMBDA_EXEC_WRAPPER": "/opt/bootstrap",
    "AWS_LWA_INVOKE_MODE": "RESPONSE_STREAM",
    "AWS_LWA_PORT": "8080",
    # The server is ready when it listens: it has imported the app then. The app of a route has no path for a health check.
    "AWS_LWA_READINESS_CHECK_PROTOCOL": "TCP",
}
# After a restore the web adapter posts to this path, and forwards no request before the app has answered. No route uses the path.
_SNAP_START_VARIABLES: Final = {"AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH": "/restored"}
_SHARED_HANDLER: Final = "functions.workers.shared.handler"


class FunctionKind(Enum):
    """The kind of a function. It decides the timeout: 29 seconds if it is short, otherwise 15 minutes."""

    SHORT = "short"  # <module>.handler, called by API Gateway
    STREAMING = "streaming"  # the ASGI app <module>:app under the web adapter
    WORKER = "worker"  # <module>.handler, called by a queue, a state machine or a schedule


class Function(Construct):
    """The Lambda function of a route or a worker, on arm64. It has its own log group. Functions with the same permissions share a
    role, and the ``tenant_role`` that it assumes to reach tenants' data, if they need any.

    ``modules`` are the modules of its routes; only a short function can serve several. ``embeds`` adds the weights of the
    embedded model, ``swagger_ui`` the files of the page at /docs, ``edits`` the editor. ``sandbox`` is the name of the function
    that runs the code of models, for functions that may know it. ``timeout`` replaces the timeout of its ``kind``.
    ``reserved_concurrency`` limits how many instances run at the same time. ``name`` is that of the table of routes or workers,
    for the tag.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        description: str,
        modules: Sequence[str],
        code: lambda_.Code,
        layers: Layers,
        role: iam.Role,
        tenant_role: str | None,
        environment: Mapping[str, str],
        memory: int,
        kind: FunctionKind,
        embeds: bool,
        snap_start: bool,
        log_retention: logs.RetentionDays,
        log_removal: RemovalPolicy,
        swagger_ui: bool = False,
        edits: bool = False,
        sandbox: str | None = None,
        timeout: Duration | None = None,
        reserved_concurrency: int | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        if snap_start and kind is not FunctionKind.STREAMING:
            raise ValueError(
                f"{construct_id}: only a streaming function learns of a restore, so no other function may start from a snapshot."
            )
        # CloudFormation names the function and the log group. A fixed name could still be in use: by a retained log group, or,
        # when a route moves to another surface, by its old function. Operators find functions by this tag.
        Tags.of(self).add(TAG, name)
        self.role = role
        self.log_group = logs.LogGroup(self, "Logs", retention=log_retention, removal_policy=log_removal)
        variables = {
            **environment,
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",  # the threads of S3's client would each keep the memory of the objects that they read
            "AWS_STS_REGIONAL_ENDPOINTS": "regional",
        }
        attached: list[lambda_.ILayerVersion] = [layers.runtime]
        if tenant_role is not None:
            variables["SPASS_TENANT_ROLE"] = tenant_role
        if embeds:
            variables["SPASS_MODEL"] = "/opt/model"
            attached.append(layers.model)
        if swagger_ui:
            attached.append(layers.swagger_ui)
        if edits:
            variables["SPASS_EDITOR"] = "/opt/editor"
            attached.append(layers.editor)
        if sandbox is not None:
            variables["SPASS_SANDBOX_FUNCTION"] = sandbox
        handler = f"{modules[0]}.handler"
        if len(modules) > 1:
            variables["SPASS_ROUTES"] = ",".join(modules)
            handler = _SHARED_HANDLER
        if kind is FunctionKind.STREAMING:
            (module,) = modules
            handler = "run.sh"
            variables |= {**_STREAMING_VARIABLES, "SPASS_APP": f"{module}:app"}
            attached.append(layers.web_adapter)
        if snap_start:
            variables |= _SNAP_START_VARIABLES
        self.resource = lambda_.Function(
            self,
            "Function",
            description=description,
            code=code,
            handler=handler,
            runtime=RUNTIME,
            architecture=ARCHITECTURE,
            memory_size=memory,
            timeout=timeout or (SHORT_TIMEOUT if kind is FunctionKind.SHORT else LONG_TIMEOUT),
            reserved_concurrent_executions=reserved_concurrency,
            environment=variables,
            layers=attached,
            role=role.without_policy_updates(),
            log_group=self.log_group,
            logging_format=lambda_.LoggingFormat.JSON,
            # The report of each invocation (billed time, used memory, duration of the start) is a line of level INFO.
            system_log_level_v2=lambda_.SystemLogLevel.INFO,
            snap_start=lambda_.SnapStartConf.ON_PUBLISHED_VERSIONS if snap_start else None,
        )
        # SnapStart works only on published versions, so such a function is invoked by an alias of its newest version.
        self.target: lambda_.IFunction = (
            lambda_.Alias(self, "Live", alias_name="live", version=self.resource.current_version) if snap_start else self.resource
        )
