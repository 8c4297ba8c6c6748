"""The workers: consumers of the queues, the state machine with its steps, and the hourly sweep."""

from typing import Final

from aws_cdk import Duration, NestedStack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.function import Function, FunctionKind
from infra.constructs.key import key_statements
from infra.constructs.layer import Layers, function_code
from infra.constructs.machine import COMPACTION, Machine
from infra.constructs.roles import Roles
from infra.constructs.sandbox import Sandbox
from infra.constructs.traces import export_statements
from infra.environments import Environment, one_more
from infra.routes import Permission
from infra.stateful_resources import ScheduleTarget, StatefulQueue, StatefulResources, function_environment
from infra.workers import WORKERS, Trigger, Worker

# Starting an execution takes a tenth of a second.
_COMPACTION_BATCH_SIZE: Final = 10
_MAX_COMPACTION_CONCURRENCY: Final = 2
_EVERY: Final = "rate(1 hour)"
_WITHIN_MINUTES: Final = 15  # no caller waits for it
_SWEEP: Final = "sweep"  # its schedule has this name since the first release, and another name would replace it

# These add a layer or a variable to the function, and nothing to its role.
_WITHOUT_RIGHTS: Final = frozenset({Permission.EMBEDDING, Permission.EDITOR, Permission.SANDBOX_NAME})


class JobsStack(NestedStack):
    """The workers of an environment as a nested stack, for the same reasons as the surfaces (``SurfaceStack``)."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: Environment,
        layers: Layers,
        stored: StatefulResources,
        schedules: ScheduleTarget,
        sandbox: Sandbox,
    ) -> None:
        super().__init__(scope, construct_id, description=f"Spass {environment.name}: workers")
        self._environment = environment
        self._layers = layers
        self._code = function_code(self)
        self._key = stored.key
        self._sandbox = sandbox.resource
        self._variables = function_environment(environment, stored, schedules)
        self.functions: dict[str, Function] = {}
        workers = {worker.trigger: worker for worker in WORKERS if worker.trigger is not Trigger.HOURLY}
        keys, code = environment.keys_path, self._sandbox.function_arn
        # The ids are new for the reason of ``SurfaceStack``.
        roles = Roles(self, "StepAccess", stored=stored, schedules=schedules, keys_path=keys, sandbox=code)
        self.compaction = self._machine(self._add_worker(workers[Trigger.COMPACTION], roles))
        self._variables["SPASS_COMPACTION_MACHINE"] = self.compaction.arn
        roles = Roles(
            self, "Access", stored=stored, schedules=schedules, keys_path=keys, sandbox=code, compaction=self.compaction.arn
        )
        # One message per invocation: a message is a file or a part of one, and one file must not wait for another.
        jobs = self._add_worker(workers[Trigger.JOBS], roles)
        self._add_event_source("Messages", stored.jobs, jobs, batch=1, max_concurrency=one_more(environment.job_workers))
        compactions = self._add_worker(workers[Trigger.COMPACTIONS], roles)
        self._add_event_source(
            "Compactions",
            stored.compactions,
            compactions,
            batch=_COMPACTION_BATCH_SIZE,
            max_concurrency=_MAX_COMPACTION_CONCURRENCY,
            sends=False,
        )
        # One run per invocation: it may take as long as the function may.
        runs = self._add_worker(workers[Trigger.RUNS], roles)
        self._add_event_source("Runs", stored.runs, runs, batch=1, max_concurrency=one_more(environment.run_workers))
        for worker in WORKERS:
            if worker.trigger is Trigger.HOURLY:
                self._add_schedule(worker, self._add_worker(worker, roles))
        acknowledge(
            self, {"AwsSolutions-L1": "Python 3.13 is what the packages are pinned for; tests run on 3.11, the oldest allowed."}
        )

    def _add_worker(self, worker: Worker, roles: Roles) -> Function:
        environment = self._environment
        role = roles.role(worker.permissions - _WITHOUT_RIGHTS)
        steps = environment.compaction_steps if worker.trigger is Trigger.COMPACTION else None
        function = Function(
            self,
            worker.function_name,
            name=worker.function_name,
            description=f"Spass {environment.name}: worker {worker.module}",
            modules=[f"functions.workers.{worker.module}"],
            code=self._code,
            layers=self._layers,
            role=role.own,
            tenant_role=role.twin,
            environment=self._variables,
            memory=worker.memory,
            kind=FunctionKind.WORKER,
            embeds=Permission.EMBEDDING in worker.permissions,
            edits=Permission.EDITOR in worker.permissions,
            sandbox=self._sandbox.function_name if Permission.SANDBOX_NAME in worker.permissions else None,
            snap_start=False,
            timeout=Duration.seconds(worker.seconds),
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
            reserved_concurrency=one_more(steps) if steps else None,
        )
        function.log_group.grant_write(role.own)
        for statement in export_statements(self, environment.traces):
            role.own.add_to_policy(statement)
        self.functions[worker.function_name] = function
        return function

    def _machine(self, step: Function) -> Machine:
        return Machine(
            self,
            "Compaction",
            definition=COMPACTION,
            step=step.resource,
            log_retention=self._environment.log_retention,
            log_removal=self._environment.log_removal,
        )

    def _add_event_source(
        self,
        construct_id: str,
        queue: StatefulQueue,
        function: Function,
        *,
        batch: int,
        max_concurrency: int,
        sends: bool = True,
    ) -> None:
        """Invoke ``function`` with up to ``batch`` messages of ``queue``, in at most ``max_concurrency`` concurrent calls.
        ``sends``: its role may send to a queue."""
        function.role.add_to_policy(
            iam.PolicyStatement(
                actions=["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], resources=[queue.arn]
            )
        )
        if not sends:  # who sends to a queue may use the key for it already
            for statement in key_statements(self, self._key, decrypt=["sqs"]):
                function.role.add_to_policy(statement)
        lambda_.CfnEventSourceMapping(
            self,
            construct_id,
            function_name=function.resource.function_name,
            event_source_arn=queue.arn,
            batch_size=batch,
            function_response_types=["ReportBatchItemFailures"],
            scaling_config=lambda_.CfnEventSourceMapping.ScalingConfigProperty(maximum_concurrency=max_concurrency),
        ).node.add_dependency(function.role)

    def _add_schedule(self, worker: Worker, function: Function) -> None:
        clock = "Clock" if worker.module == _SWEEP else f"{worker.function_name}-clock"
        role = iam.Role(self, f"{clock}Role", assumed_by=self._clock())
        role.add_to_policy(iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[function.resource.function_arn]))
        scheduler.CfnSchedule(
            self,
            clock,
            description="Sweeps what nothing points at any more"
            if worker.module == _SWEEP
            else f"Invokes {worker.function_name}",
            schedule_expression=_EVERY,
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(
                mode="FLEXIBLE", maximum_window_in_minutes=_WITHIN_MINUTES
            ),
            target=scheduler.CfnSchedule.TargetProperty(arn=function.resource.function_arn, role_arn=role.role_arn),
        ).node.add_dependency(role)

    def _clock(self) -> iam.PrincipalBase:
        return iam.ServicePrincipal("scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": self.account}})
