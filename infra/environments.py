"""The three environments of a gateway. This module has every setting that differs between them.

In all of them tenant data is retained, encrypted, recoverable to any second and protected from deletion (``stacks/data.py``).
``environments.yaml`` overrides these settings and adds environments (``environments_file.py``). The ``description`` of a field
says which values it may have; messages quote it.
"""

from typing import Annotated, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from aws_cdk import RemovalPolicy
from aws_cdk.aws_logs import RetentionDays
from pydantic import ConfigDict, Field, Strict, StrictBool, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

_REGION: Final = r"^[a-z]{2}(-[a-z]+)+-[0-9]$"
_YES_OR_NO: Final = "true or false"


Tls: TypeAlias = Literal[
    "SecurityPolicy_TLS13_1_2_PFS_PQ_2025_09",
    "SecurityPolicy_TLS13_1_2_PQ_2025_09",
    "SecurityPolicy_TLS13_1_2_FIPS_PFS_PQ_2025_09",
    "SecurityPolicy_TLS13_1_2_FIPS_PQ_2025_09",
    "SecurityPolicy_TLS13_1_2_2021_06",
    "SecurityPolicy_TLS13_1_3_2025_09",
    "SecurityPolicy_TLS13_1_3_FIPS_2025_09",
]
"""The security policies of regional APIs whose lowest version is TLS 1.2 or 1.3."""


def one_more(workers: int) -> int:
    """Return the number of workers of which all tenants' places are ``workers``."""
    return workers + 1


ENVIRONMENT_TAG: Final = "spass:environment"
"""The tag of every resource, with the name of its environment."""


def data_stack_name(environment: str) -> str:
    """Return the name of the data stack of this environment. CloudFormation begins the names of its resources with it."""
    return f"Spass-{environment}-Data"


def _problem(reason: str, within: str | None = None, other: str | None = None) -> PydanticCustomError:
    """Return the error of a value that does not fit another. ``within`` is the key of the value in a mapping that is wrong.
    ``other`` is the key of the other value, which may be the one that the operator wrote."""
    return PydanticCustomError("conflict", "{reason}", {"reason": reason, "within": within, "other": other})


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Domain:
    """A domain name of the API.

    ``certificate``: the ARN of its certificate in ACM, in the region of the environment.
    ``zone``: the id of its hosted zone in Route 53, which then gets its record. None leaves it to the operator.
    ``keep_endpoint``: leave the endpoint that API Gateway generates reachable.
    """

    name: str = Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$", description="a domain name in lower case")
    certificate: str = Field(
        pattern=r"^arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9a-f-]+$",
        description="the ARN of a certificate in ACM, arn:aws:acm:<region>:<account>:certificate/<id>",
    )
    zone: str | None = Field(
        default=None, pattern="^Z[A-Z0-9]{1,31}$", description="the id of a hosted zone, e.g. Z0123456789ABCDEFGHIJ"
    )
    keep_endpoint: StrictBool = Field(default=False, description=_YES_OR_NO)


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Restored:
    """The table, and if it is not the environment's own the bucket, to use instead of those of the data stack."""

    table: str = Field(pattern="^[a-zA-Z0-9_.-]{3,255}$", description="the name of a table")
    bucket: str | None = Field(default=None, pattern="^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="the name of a bucket")


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Traces:
    """The export of spans, over OTLP/HTTP.

    ``sample``: the part of all traces that is sent. Those with an error or a turn of more than 30 seconds are always sent.
    ``headers_parameter``: the name of a parameter in SSM with the headers of each request, as ``name=value,name=value``.
    ``sign``: sign requests for the OTLP endpoint of X-Ray.
    """

    endpoint: str = Field(
        pattern=r"^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[!-~]*)?$",
        description="a URL with https and without a user, e.g. https://collector.example.org/v1/traces",
    )
    sample: Annotated[float, Strict()] = Field(ge=0, le=1, description="a number from 0 to 1")
    headers_parameter: str | None = Field(
        default=None,
        pattern="^(/[A-Za-z0-9_.-]+)+$",
        description="the name of a parameter in SSM, e.g. /spass/prod/TRACE_HEADERS",
    )
    sign: Literal["xray"] | None = Field(default=None, description="xray, or null for no signature")

    @field_validator("endpoint")
    @classmethod
    def _has_a_port_that_exists(cls, endpoint: str) -> str:
        _ = urlsplit(endpoint).port  # a function whose exporter has none does not start
        return endpoint


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Environment:
    """One deployment of the gateway.

    ``account``: None means the account of the deploying credentials.
    ``rate``, ``burst``: the limits of API Gateway for all routes together, in requests per second and in concurrent requests.
    ``recovery_days``: how many days back the table and the bucket can be restored.
    ``alarms``: create the alarms, the saved queries and the dashboard. An alarm costs 10 cents a month, also while idle, so only
    prod has them.
    ``alarm_email``: the address that gets the messages of the alarms and of the budget.
    ``contact``: an address or a page of the operator, which the Wikipedia tools send in their User-Agent.
    ``snap_start``: restore the routes that call models from a snapshot instead of a cold start. Snapshots cost money while idle.
    After a restore each function makes new clients, reads its credentials again and reseeds ``random``
    (``spass/web/http_function.py``).
    ``job_workers``, ``run_workers``, ``compaction_steps``: what all tenants together have in work at the same time. One tenant
    has half of it at most if there are others. There is one worker more (``one_more``), which is free for another tenant.
    ``job_workers``: the number of concurrent messages of the job queue (files, parts, merges). The other messages wait on the
    queue, for days if necessary.
    ``run_workers``: the number of concurrent runs of managed agents from their queue. Each can take 15 minutes.
    ``compaction_steps``: the number of concurrent steps of requested compactions, and of such compactions in work; None sets no
    limit of steps but the account's, and 100 compactions. This concurrency is reserved: no other function of the account can use
    it, and Lambda requires that 100 remain for those. A new account has less than that (docs/deploying.md). A step that has to
    wait must start within the hour of its compaction.
    ``followers``: the number of clients of all tenants that read streams with ``GET`` at the same time: three fifths for chats,
    the rest for runs of managed agents. None sets no limit but the account's. Each keeps an instance for up to 14 minutes, and
    ``rate`` bounds only how many come in a second. This concurrency is reserved like that of ``compaction_steps``.
    ``limits.followers`` in ``gateway.yaml`` bounds those of one tenant, in whatever way they follow.
    ``telemetry``: log one more line for each model call, tool call and agent turn, and one with the trace of each turn.
    ``metrics``: CloudWatch reads metrics from the lines of telemetry. It bills each for the hours in which it gets values, up
    to 30 cents a month (docs/operations.md has their number), so only prod has them.
    ``audit_archive_days``: how long the bucket keeps the line of a call in the audit archive; None archives nothing.
    ``needs_tenant``: do not synthesise without a tenant with a token in ``gateway.yaml``: the gateway would refuse every request.
    ``tls``: the lowest version of TLS, and the ciphers, of the API's endpoint and its domain.
    ``waf``: a web ACL, which costs money while idle.
    ``budget_usd``: a monthly budget of what has the environment's tag.
    ``key``: ``customer`` is a key of KMS of the environment's own for all that is stored, and costs 1 dollar a month.
    ``traces``: export spans.
    ``copy_to``: the region to which AWS Backup copies the table and the bucket every day.
    """

    # A bucket's name begins with that of its stack, whole, because a policy compares it (constructs/queue.py). It has up to 63
    # letters, of which 46 are not the environment's.
    name: str = Field(pattern="^[a-z][a-z0-9-]{1,15}$")
    region: str = Field(default="eu-central-1", pattern=_REGION, description="a region, e.g. eu-central-1")
    account: str | None = Field(default=None, pattern="^[0-9]{12}$", description="the 12 digits of an account, in quotes")
    log_retention: RetentionDays
    log_removal: RemovalPolicy
    rate: int = Field(ge=1, le=10_000, description="a whole number from 1 to 10000")
    burst: int = Field(ge=1, le=10_000, description="a whole number from 1 to 10000")
    recovery_days: int = Field(ge=1, le=35, description="a whole number from 1 to 35")
    alarms: bool = Field(default=False, description=_YES_OR_NO)
    alarm_email: str | None = Field(default=None, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", description="an e-mail address")
    contact: str | None = Field(default=None, pattern=r"^[\x20-\x7e]+$", description="an address or a page, in ASCII")
    snap_start: bool = Field(default=False, description=_YES_OR_NO)
    job_workers: int = Field(default=32, ge=2, le=999, description="a whole number from 2 to 999")
    run_workers: int = Field(default=8, ge=2, le=999, description="a whole number from 2 to 999")
    compaction_steps: int | None = Field(
        default=None, ge=1, le=899, description="a whole number from 1 to 899, or null for no limit"
    )
    followers: int | None = Field(default=None, ge=2, le=900, description="a whole number from 2 to 900, or null for no limit")
    telemetry: bool = Field(default=False, description=_YES_OR_NO)
    metrics: bool = Field(default=False, description=_YES_OR_NO)
    audit_archive_days: int | None = Field(default=None, ge=1, description="a whole number from 1, or null for no archive")
    needs_tenant: bool = False
    domain: Domain | None = Field(default=None, description="a mapping with name and certificate, or null")
    tls: Tls = Field(default="SecurityPolicy_TLS13_1_2_PFS_PQ_2025_09", description=f"one of {', '.join(get_args(Tls))}")
    waf: bool = Field(default=False, description=_YES_OR_NO)
    budget_usd: float | None = Field(default=None, gt=0, description="a number of dollars above 0, or null for no budget")
    key: Literal["aws", "customer"] = Field(default="aws", description="aws or customer")
    restored: Restored | None = Field(default=None, description="a mapping with table, or null")
    traces: Traces | None = Field(default=None, description="a mapping with endpoint and sample, or null")
    copy_to: str | None = Field(default=None, pattern=_REGION, description="a region other than the environment's, or null")

    @field_validator("domain")
    @classmethod
    def _has_certificate_of_region(cls, domain: Domain | None, info: ValidationInfo) -> Domain | None:
        region, account = info.data.get("region"), info.data.get("account")
        if domain and region and domain.certificate.split(":")[3] != region:
            raise _problem(f"a regional API needs a certificate of its own region, {region}", within="certificate")
        if domain and account and domain.certificate.split(":")[4] != account:
            raise _problem(f"an API needs a certificate of its own account, {account}", within="certificate")
        return domain

    @field_validator("metrics")
    @classmethod
    def _count_lost_records(cls, metrics: bool, info: ValidationInfo) -> bool:
        if info.data.get("alarms") and not metrics:
            reason = "alarms need metrics: true, because only a metric of the gateway's own shows that audit records are lost"
            raise _problem(reason, other="alarms")
        return metrics

    @field_validator("budget_usd")
    @classmethod
    def _has_recipient(cls, budget_usd: float | None, info: ValidationInfo) -> float | None:
        if budget_usd and info.data.get("alarm_email", "") is None:
            raise _problem("a budget needs alarm_email, the address that it writes to")
        return budget_usd

    @field_validator("restored")
    @classmethod
    def _is_not_its_own(cls, restored: Restored | None, info: ValidationInfo) -> Restored | None:
        stack = data_stack_name(info.data.get("name", ""))
        if restored and restored.table.startswith(f"{stack}-"):
            raise _problem("this table is the environment's own; write the name of the table that a restore made", within="table")
        if restored and restored.bucket and restored.bucket.startswith(f"{stack.lower()}-"):
            raise _problem("this bucket is the environment's own, which it uses without this key", within="bucket")
        return restored

    @field_validator("traces")
    @classmethod
    def _agrees_with_its_endpoint(cls, traces: Traces | None, info: ValidationInfo) -> Traces | None:
        region = info.data.get("region")
        if traces is None or region is None:
            return traces
        xray = f"https://xray.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}/v1/traces"
        if traces.sign and traces.endpoint != xray:
            raise _problem(f"requests are signed for X-Ray of the environment's region; write {xray}", within="endpoint")
        if traces.endpoint == xray and not traces.sign:
            raise _problem("X-Ray takes signed requests only; add sign: xray", within="endpoint")
        if traces.sign and traces.headers_parameter:
            raise _problem("X-Ray reads no headers but the signature; remove this key", within="headers_parameter")
        return traces

    @field_validator("copy_to")
    @classmethod
    def _is_elsewhere(cls, copy_to: str | None, info: ValidationInfo) -> str | None:
        if copy_to and copy_to == info.data.get("region"):
            raise _problem(f"{copy_to} is the environment's own region; write another one")
        return copy_to

    @property
    def endpoint_disabled(self) -> bool:
        """Return True if only the domain leads to the API."""
        return self.domain is not None and not self.domain.keep_endpoint

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
    job_workers=64,
    run_workers=32,
    compaction_steps=20,
    followers=100,
    needs_tenant=True,
)

ENVIRONMENTS: Final[dict[str, Environment]] = {environment.name: environment for environment in (DEV, STAGING, PROD)}
