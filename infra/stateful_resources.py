"""The stateful stack's resources for the other stacks of its environment, and the environment variables that name them."""

from dataclasses import dataclass

from infra.constructs.traces import export_variables
from infra.environments import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulQueue:
    """The URL and ARN of a work queue, and the ARN of its dead-letter queue."""

    url: str
    arn: str
    failed_arn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulResources:
    """The names of table and bucket, the queues, and the ARN of the key of KMS that encrypts them, if it is not AWS's own."""

    table: str
    bucket: str
    jobs: StatefulQueue
    compactions: StatefulQueue
    runs: StatefulQueue
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTarget:
    """The schedule group, and the role that EventBridge Scheduler assumes to send a tick to the queue of runs.

    ``group_parameter`` is the name of the parameter with which a nested stack gets the group.
    """

    group: str
    group_parameter: str
    role_arn: str


def function_environment(environment: Environment, stored: StatefulResources, schedules: ScheduleTarget) -> dict[str, str]:
    """Return the environment variables of every function."""
    variables: dict[str, str | None] = {
        "SPASS_CONFIG": "/var/task/config/gateway.yaml",
        "SPASS_AGENTS": "/var/task/config/agents",
        "SPASS_TABLE": stored.table,
        "SPASS_BUCKET": stored.bucket,
        "SPASS_QUEUE": stored.jobs.url,
        "SPASS_COMPACTION_QUEUE": stored.compactions.url,
        "SPASS_RUNS_QUEUE": stored.runs.url,
        "SPASS_RUNS_QUEUE_ARN": stored.runs.arn,
        "SPASS_RUN_WORKERS": str(environment.run_workers),
        "SPASS_JOB_WORKERS": str(environment.job_workers),
        "SPASS_COMPACTION_WORKERS": str(environment.compaction_steps) if environment.compaction_steps else None,
        "SPASS_FOLLOWERS": str(environment.followers) if environment.followers else None,
        "SPASS_SCHEDULE_GROUP": schedules.group,
        "SPASS_SCHEDULE_ROLE": schedules.role_arn,
        "SPASS_KEYS_PATH": environment.keys_path,
        "SPASS_CONTACT": environment.contact,
        "SPASS_TELEMETRY": "1" if environment.telemetry else None,
        "SPASS_METRICS_NAMESPACE": environment.metrics_namespace,
        **export_variables(environment),
        # The code of models never runs in a function of the gateway: without the sandbox's name it runs nowhere.
        "SPASS_SANDBOX": "lambda",
    }
    return {name: value for name, value in variables.items() if value}
