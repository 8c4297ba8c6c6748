"""What works without being called: the worker of the queue, the state machine that ingests large files, the hourly sweep."""

from typing import Final

from aws_cdk import NestedStack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.archive import AuditArchive
from infra.constructs.function import Function, Kind
from infra.constructs.layer import Layers, function_code
from infra.constructs.machine import IngestMachine
from infra.constructs.roles import Roles
from infra.environments import Environment
from infra.routes import Permission
from infra.stored import Stored, variables
from infra.workers import WORKERS, Trigger, Worker

# How many files are looked at, or indices merged, at a time. Lambda allows an account 1000 functions at once by default, and the
# callers of the API shall always find one.
_MESSAGES_AT_ONCE: Final = 10
_SWEEP_EVERY: Final = "rate(1 hour)"
_SWEEP_WITHIN_MINUTES: Final = 15  # of the hour: nobody waits for it

_EMBEDDING: Final = frozenset({Permission.EMBEDDING})


class JobsStack(NestedStack):
    """The workers of an environment, nested as the surfaces are, and for the same reasons."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: Environment,
        layers: Layers,
        stored: Stored,
        archive: AuditArchive | None,
    ) -> None:
        super().__init__(scope, construct_id, description=f"Spass {environment.name}: workers")
        self._environment = environment
        self._layers = layers
        self._archive = archive
        self._code = function_code()
        self._variables = variables(environment, stored)
        self.functions: dict[str, Function] = {}
        (step,) = (worker for worker in WORKERS if worker.trigger is Trigger.MACHINE)
        roles = Roles(self, "StepRoles", stored=stored, keys_path=environment.keys_path)
        self.machine = IngestMachine(
            self,
            "Ingest",
            step=self._add_worker(step, roles).resource,
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
        )
        self._variables["SPASS_INGEST_MACHINE"] = self.machine.arn
        roles = Roles(self, "Roles", stored=stored, keys_path=environment.keys_path, machine=self.machine.arn)
        queue = sqs.Queue.from_queue_arn(self, "Queue", stored.queue_arn)
        for worker in WORKERS:
            match worker.trigger:
                case Trigger.QUEUE:
                    self._work_off(queue, self._add_worker(worker, roles))
                case Trigger.HOURLY:
                    self._every_hour(self._add_worker(worker, roles))
        acknowledge(
            self, {"AwsSolutions-L1": "Python 3.13 is what the packages are pinned for; tests run on 3.11, the oldest allowed."}
        )

    def _add_worker(self, worker: Worker, roles: Roles) -> Function:
        environment = self._environment
        role = roles.role(worker.permissions - _EMBEDDING)
        function = Function(
            self,
            worker.function_name,
            description=f"Spass {environment.name}: worker {worker.module}",
            modules=[f"functions.workers.{worker.module}"],
            code=self._code,
            layers=self._layers,
            role=role,
            environment=self._variables,
            memory=worker.memory,
            kind=Kind.WORKER,
            embeds=Permission.EMBEDDING in worker.permissions,
            snap_start=False,
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
            at_once=environment.ingest_steps if worker.trigger is Trigger.MACHINE else None,
        )
        function.log_group.grant_write(role)
        if self._archive is not None and Permission.MODELS in worker.permissions:
            self._archive.subscribe(function)
        self.functions[worker.function_name] = function
        return function

    def _work_off(self, queue: sqs.IQueue, function: Function) -> None:
        """One message at a time: a message is a file, and one file shall not wait for another."""
        function.role.add_to_policy(
            iam.PolicyStatement(
                actions=["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], resources=[queue.queue_arn]
            )
        )
        lambda_.CfnEventSourceMapping(
            self,
            "Messages",
            function_name=function.resource.function_name,
            event_source_arn=queue.queue_arn,
            batch_size=1,
            function_response_types=["ReportBatchItemFailures"],
            scaling_config=lambda_.CfnEventSourceMapping.ScalingConfigProperty(maximum_concurrency=_MESSAGES_AT_ONCE),
        ).node.add_dependency(function.role)

    def _every_hour(self, function: Function) -> None:
        role = iam.Role(self, "ClockRole", assumed_by=self._clock())
        role.add_to_policy(iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[function.resource.function_arn]))
        scheduler.CfnSchedule(
            self,
            "Clock",
            description="Sweeps what nothing points at any more",
            schedule_expression=_SWEEP_EVERY,
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(
                mode="FLEXIBLE", maximum_window_in_minutes=_SWEEP_WITHIN_MINUTES
            ),
            target=scheduler.CfnSchedule.TargetProperty(arn=function.resource.function_arn, role_arn=role.role_arn),
        ).node.add_dependency(role)

    def _clock(self) -> iam.PrincipalBase:
        return iam.ServicePrincipal("scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": self.account}})
