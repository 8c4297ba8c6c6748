"""The three environments a gateway is deployed to, as plain values: what differs between them stands here and nowhere else.

What must never differ is not here: tenant data is retained, encrypted, recoverable to any second and protected from deletion
in all of them (``stacks/data.py``).
"""

from dataclasses import dataclass
from typing import Final

from aws_cdk import RemovalPolicy
from aws_cdk.aws_logs import RetentionDays


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One deployment of the gateway.

    ``account`` None means the account of the deploying credentials. ``rate`` and ``burst`` are the requests per second and at
    once that API Gateway lets through to all routes together.
    ``recovery_days`` is how far back table and bucket can be restored. ``alarms``
    bill about 10 cents a month for each metric watched, also while idle, so only prod has them; ``alarm_email`` gets their
    messages. ``audit_archive_days`` is how long the archive of the audit keeps a call's line in the bucket; None archives none.
    ``contact`` (an address or a page) is what the Wikipedia tools tell Wikipedia about who calls. ``snap_start``
    restores the routes that call models from a snapshot instead of starting them cold; snapshots bill while idle. After a restore
    each function makes new clients, reads its credentials again and reseeds ``random`` (``spass/web/http_function.py``).
    ``job_workers`` (2 to 1000) is how many messages of the queue of jobs are worked on at once: files, parts, merges. What finds
    none free waits, for days if it must. ``compaction_steps`` is how many functions work on steps of compactions that were
    asked for; None bounds them by the account alone. They are reserved: nothing else of the account gets them, and Lambda wants
    100 left to the rest. What finds none free waits within its hour.
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
    compaction_steps: int | None = None
    audit_archive_days: int | None = None

    @property
    def keys_path(self) -> str:
        """The path of the SSM parameters that hold the provider keys, e.g. ``/spass/dev/``."""
        return f"/spass/{self.name}/"


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
    audit_archive_days=90,
)
PROD: Final = Environment(
    name="prod",
    log_retention=RetentionDays.SIX_MONTHS,
    log_removal=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    rate=500,
    burst=1000,
    recovery_days=35,
    audit_archive_days=400,
    alarms=True,
)

ENVIRONMENTS: Final[dict[str, Environment]] = {environment.name: environment for environment in (DEV, STAGING, PROD)}
