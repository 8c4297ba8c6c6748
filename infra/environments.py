"""The three environments of a gateway. This module has every setting that differs between them.

In all of them tenant data is retained, encrypted, recoverable to any second and protected from deletion (``stacks/data.py``).
"""

from dataclasses import dataclass
from typing import Final

from aws_cdk import RemovalPolicy
from aws_cdk.aws_logs import RetentionDays


def one_more(workers: int) -> int:
    """Return the number of workers of which a tenant that is alone may have ``workers``."""
    return workers + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One deployment of the gateway.

    ``account``: None means the account of the deploying credentials.
    ``rate``, ``burst``: the limits of API Gateway for all routes together, in requests per second and in concurrent requests.
    ``recovery_days``: how many days back the table and the bucket can be restored.
    ``alarms``: create the alarms, the saved queries and the dashboard. An alarm costs 10 cents a month, also while idle, so only
    prod has them.
    ``alarm_email``: the address that gets the messages of the alarms.
    ``contact``: an address or a page of the operator, which the Wikipedia tools send in their User-Agent.
    ``snap_start``: restore the routes that call models from a snapshot instead of a cold start. Snapshots cost money while idle.
    After a restore each function makes new clients, reads its credentials again and reseeds ``random``
    (``spass/web/http_function.py``).
    ``job_workers``, ``run_workers``, ``compaction_steps``: what one tenant has in work at the same time while it is alone. There
    is one more worker than that (``one_more``), which the first piece of work of another tenant gets.
    ``job_workers``: the number of concurrent messages of the job queue (files, parts, merges), 2 to 999. The other messages wait
    on the queue, for days if necessary.
    ``run_workers``: the number of concurrent runs of managed agents from their queue, 2 to 999. Each can take 15 minutes.
    ``compaction_steps``: the number of concurrent steps of requested compactions, and of such compactions in work; None sets no
    limit of steps but the account's, and 100 compactions. This concurrency is reserved: no other function of the account can use
    it, and Lambda requires that 100 remain for those. A step that has to wait must start within the hour of its compaction.
    ``followers``: the number of clients of all tenants that read streams with ``GET`` at the same time, 2 or more: three fifths
    for chats, the rest for runs of managed agents. None sets no limit but the account's. Each keeps an instance for up to 14
    minutes, and ``rate`` bounds only how many come in a second. This concurrency is reserved like that of ``compaction_steps``.
    ``limits.followers`` in ``gateway.yaml`` bounds those of one tenant, in whatever way they follow.
    ``telemetry``: log one more line for each model call, tool call and agent turn, and one with the trace of each turn.
    ``metrics``: CloudWatch reads metrics from the lines of telemetry. It bills each for the hours in which it gets values, up
    to 30 cents a month (docs/operations.md has their number), so only prod has them.
    ``audit_archive_days``: how long the bucket keeps the line of a call in the audit archive; None archives nothing.
    ``needs_tenant``: do not synthesise without a tenant with a token in ``gateway.yaml``: the gateway would refuse every request.
    """

    name: str
    region: str = "eu-central-1"
    account: str | None = None
    log_retention: RetentionDays
    log_removal: RemovalPolicy
    rate: int
    burst: int
    recovery_days: int
    alarms: bool = False
    alarm_email: str | None = None
    contact: str | None = None
    snap_start: bool = False
    job_workers: int = 32
    run_workers: int = 8
    compaction_steps: int | None = None
    followers: int | None = None
    telemetry: bool = False
    metrics: bool = False
    audit_archive_days: int | None = None
    needs_tenant: bool = False

    def __post_init__(self) -> None:
        if self.followers is not None and self.followers < 2:
            raise ValueError(
                f"followers={self.followers} of the environment {self.name} leaves one of the two functions that read streams no "
                "concurrency, and Lambda would refuse each of its calls. Write 2 or more, or None for no limit."
            )

    def followers_of(self, module: str) -> int | None:
        """Return the concurrency that is reserved for the function of ``module``, or None if it does not read streams."""
        if self.followers is None or module not in ("streams.get", "managed.run_stream"):
            return None
        chats = self.followers * 3 // 5
        return chats if module == "streams.get" else self.followers - chats

    @property
    def keys_path(self) -> str:
        """Return the path of the SSM parameters with the provider keys, e.g. ``/spass/dev/``."""
        return f"/spass/{self.name}/"

    @property
    def metrics_namespace(self) -> str | None:
        """Return the namespace of the metrics in CloudWatch, e.g. ``Spass/prod``, or None if they are off."""
        return f"Spass/{self.name}" if self.metrics else None


DEV: Final = Environment(
    name="dev",
    log_retention=RetentionDays.ONE_WEEK,
    log_removal=RemovalPolicy.DESTROY,
    rate=20,
    burst=40,
    recovery_days=1,
    audit_archive_days=30,
)
STAGING: Final = Environment(
    name="staging",
    log_retention=RetentionDays.ONE_MONTH,
    log_removal=RemovalPolicy.DESTROY,
    rate=100,
    burst=200,
    recovery_days=7,
    telemetry=True,
    audit_archive_days=90,
)
PROD: Final = Environment(
    name="prod",
    log_retention=RetentionDays.SIX_MONTHS,
    log_removal=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    rate=500,
    burst=1000,
    recovery_days=35,
    telemetry=True,
    metrics=True,
    audit_archive_days=400,
    alarms=True,
    needs_tenant=True,
)

ENVIRONMENTS: Final[dict[str, Environment]] = {environment.name: environment for environment in (DEV, STAGING, PROD)}
