"""The stateless stack: layers, the REST API, and the nested stacks of the surfaces, the workers, the permissions and the
subscriptions."""

from collections.abc import Iterable, Mapping

from aws_cdk import Annotations, CfnOutput, Stack
from aws_cdk import Environment as Target
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.api import Api
from infra.constructs.archive import AuditArchive
from infra.constructs.budget import Budget
from infra.constructs.copies import vault_name
from infra.constructs.domain import DomainName
from infra.constructs.function import Function
from infra.constructs.layer import Layers
from infra.constructs.monitoring import Monitoring, Watched
from infra.constructs.sandbox import Sandbox
from infra.constructs.schedules import Schedules
from infra.constructs.web_acl import WebAcl
from infra.environments import Environment
from infra.queries import Logs
from infra.routes import ROUTES, Permission, Route, Surface
from infra.stacks.data import DataStack
from infra.stacks.jobs import JobsStack
from infra.stacks.permissions import PermissionsStack
from infra.stacks.subscriptions import SubscriptionsStack
from infra.stacks.surface import SurfaceStack
from infra.stateful_resources import StatefulQueue, StatefulResources
from infra.workers import WORKERS, Worker


class ApiStack(Stack):
    """All resources without state: this stack may be deleted and deployed again."""

    def __init__(self, scope: Construct, construct_id: str, *, environment: Environment, data: DataStack) -> None:
        super().__init__(
            scope,
            construct_id,
            env=Target(account=environment.account, region=environment.region),
            description=f"Spass {environment.name}: the API and its functions",
        )
        self.add_stack_dependency(data)
        layers = Layers(self, "Layers", region=self.region)
        sandbox = Sandbox(self, "Sandbox", description=f"Spass {environment.name}: the code of models")
        self.schedules = Schedules(self, "Schedules", queue=data.stored.runs, key=data.stored.key)
        self.surfaces = {
            surface: SurfaceStack(
                self,
                surface.value,
                environment=environment,
                routes=[route for route in ROUTES if route.surface is surface],
                layers=layers,
                stored=data.stored,
                schedules=self.schedules.target,
                sandbox=sandbox,
            )
            for surface in Surface
        }
        self.jobs = JobsStack(
            self,
            "jobs",
            environment=environment,
            layers=layers,
            stored=data.stored,
            schedules=self.schedules.target,
            sandbox=sandbox,
        )
        functions = {name: one for stack in self.surfaces.values() for name, one in stack.functions.items()}
        retired = {name: one for stack in self.surfaces.values() for name, one in stack.retired.items()}
        api = Api(
            self,
            "Api",
            name=f"spass-{environment.name}",
            routes=ROUTES,
            targets={name: one.target for name, one in functions.items()},
            stage=environment.name,
            rate=environment.rate,
            burst=environment.burst,
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
            tls=environment.tls,
            disable_endpoint=environment.endpoint_disabled,
        )
        self.permissions = PermissionsStack(
            self,
            "permissions",
            description=f"Spass {environment.name}: which functions the API may invoke",
            api=api.resource,
            functions=[*functions.values(), *retired.values()],
        )
        api.deploy_after(self.permissions)
        functions |= self.jobs.functions
        archive = self._archive(environment, data.stored)
        called = [*functions.items(), *retired.items()]
        self.subscriptions = self._subscriptions(environment, archive, called) if archive else None
        self._budget(environment)
        if environment.waf:
            WebAcl(self, "WebAcl", stage=api.resource.deployment_stage.stage_arn)
        CfnOutput(self, "Url", value=self._add_domain(environment, api) or api.resource.url.rstrip("/"))
        if environment.alarms:
            monitoring = Monitoring(
                self,
                "Monitoring",
                environment=environment.name,
                stage=api.resource.deployment_stage,
                access=api.access,
                groups={
                    Logs.CALLING: _groups(functions, Permission.MODELS),
                    Logs.WRITING: _groups(functions, Permission.TABLE_WRITE),
                },
                table=dynamodb.Table.from_table_name(self, "Items", data.stored.table),
                jobs=self._watched("Queue", "FailedJobs", data.stored.jobs),
                compactions=self._watched("Compactions", "UnstartedCompactions", data.stored.compactions),
                runs=self._watched("Runs", "FailedRuns", data.stored.runs),
                schedule_group=self.schedules.target.group,
                compaction=self.jobs.compaction.resource,
                archive=archive,
                namespace=environment.metrics_namespace,
                copies=vault_name(environment.name) if environment.copy_to else None,
                email=environment.alarm_email,
                key=kms.Key.from_key_arn(self, "Key", data.stored.key) if data.stored.key else None,
            )
            CfnOutput(self, "AlarmTopic", value=monitoring.topic.topic_arn)
            if environment.alarm_email is None:
                Annotations.of(self).add_warning_v2(
                    "spass:unheard-alarms",
                    f"The alarms of {environment.name} notify no one: set alarm_email in environments.yaml, "
                    "or subscribe to the topic that the output AlarmTopic names.",
                )

    def _add_domain(self, environment: Environment, api: Api) -> str | None:
        """Add the domain of the environment and return its URL, or None if it has none."""
        if environment.domain is None:
            return None
        stage = api.resource.deployment_stage.stage_name
        DomainName(self, "Domain", domain=environment.domain, tls=environment.tls, api=api.resource.rest_api_id, stage=stage)
        return f"https://{environment.domain.name}"

    def _budget(self, environment: Environment) -> None:
        if environment.budget_usd is not None and environment.alarm_email is not None:
            Budget(self, "Budget", environment=environment.name, usd=environment.budget_usd, email=environment.alarm_email)

    def _watched(self, construct_id: str, failed_id: str, queue: StatefulQueue) -> Watched:
        return Watched(
            queue=sqs.Queue.from_queue_arn(self, construct_id, queue.arn),
            failed=sqs.Queue.from_queue_arn(self, failed_id, queue.failed_arn),
        )

    def _archive(self, environment: Environment, stored: StatefulResources) -> AuditArchive | None:
        if environment.audit_archive_days is None:
            return None
        return AuditArchive(
            self,
            "Archive",
            bucket=stored.bucket,
            key=stored.key,
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
        )

    def _subscriptions(
        self, environment: Environment, archive: AuditArchive, functions: Iterable[tuple[str, Function]]
    ) -> SubscriptionsStack:
        """Archive the calls of the functions that call models or tools."""
        calling = _with(Permission.MODELS)
        return SubscriptionsStack(
            self,
            "subscriptions",
            description=f"Spass {environment.name}: subscriptions of the archive",
            archive=archive,
            functions=[function for name, function in functions if name in calling],
            after=[*self.surfaces.values(), self.jobs, self.permissions],
        )


def _with(permission: Permission) -> set[str]:
    """Return the names of the functions that have this permission, with those that are retired."""
    rows: list[Route | Worker] = [*ROUTES, *WORKERS]
    retired = {route.retired for route in ROUTES if route.retired and permission in route.permissions}
    return retired.union(row.function_name for row in rows if permission in row.permissions)


def _groups(functions: Mapping[str, Function], permission: Permission) -> list[str]:
    """Return the names of the log groups of the functions that have this permission."""
    return [functions[name].log_group.log_group_name for name in sorted(_with(permission) & functions.keys())]
