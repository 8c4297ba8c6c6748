"""The boto3 clients of a process, and the stores on them."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from spass.aws.bucket import S3Access, S3Objects, S3Uploads, valid_seconds
from spass.aws.dynamodb import DynamoDBTable
from spass.aws.dynamodb_client import DynamoDBClient
from spass.aws.error_translation import storage_errors
from spass.aws.job_targets import NO_JOB_TARGETS, JobTargets
from spass.aws.jobs import AwsJobs
from spass.aws.schedules import EventBridgeSchedules, SchedulerClient
from spass.aws.signing import AccessKey
from spass.aws.tenant_sessions import TenantKeys, TenantSessions
from spass.core.ids import TenantId
from spass.core.time import now_s
from spass.store.keys import BACKEND_PREFIX
from spass.store.schedules import Schedules
from spass.store.table import GuardedTable, TableClient, TenantTable
from spass.store.tenant_store import TenantStore
from spass.store.work_line import WorkBound, WorkLine, default_work_bound

if TYPE_CHECKING:
    import boto3
    from botocore.config import Config
    from botocore.credentials import Credentials
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_stepfunctions import SFNClient

    from spass.sandbox.launcher import TenantFunction

# A message takes milliseconds. After seconds it is lost, and boto3 retries twice, with jittered backoff.
_QUEUES: Final[Mapping[str, Any]] = {
    "connect_timeout": 1,
    "read_timeout": 3,
    "retries": {"mode": "standard", "total_max_attempts": 3},
    "max_pool_connections": 50,
    "tcp_keepalive": True,
    "parameter_validation": False,  # the parameters are typed, and the service validates them too
    "user_agent": "spass",  # botocore would build the default one for each call
}
# Reading an object of several megabytes takes seconds.
_BUCKET: Final[Mapping[str, Any]] = {
    "connect_timeout": 2,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 4},
    "max_pool_connections": 50,
    "tcp_keepalive": True,
    "signature_version": "s3v4",  # in some regions boto3 would sign presigned forms with version 2
}
# ``ProviderKeys`` retries itself, for a longer time.
_PARAMETERS: Final[Mapping[str, Any]] = {
    "connect_timeout": 1,
    "read_timeout": 2,
    "retries": {"mode": "standard", "total_max_attempts": 1},
}


class Aws:
    """The boto3 session of this process and its clients, each created on first use.

    Region, credentials and ``AWS_ENDPOINT_URL`` come from the environment, as boto3 reads them; endpoints are regional.
    ``work_bound`` returns how many pieces of work of a kind a tenant may have out. ``tenant_role`` is the ARN of the role that
    reaches tenants' data, in a session for each tenant. Without one, the credentials of this process reach them, as on a laptop.
    """

    def __init__(
        self,
        *,
        table: str,
        bucket: str,
        job_targets: JobTargets = NO_JOB_TARGETS,
        work_bound: WorkBound = default_work_bound,
        tenant_role: str | None = None,
    ) -> None:
        self._table = table
        self._bucket = bucket
        self._job_targets = job_targets
        self._work_bound = work_bound
        self._sessions = TenantSessions(tenant_role) if tenant_role else None

    @cached_property
    def _session(self) -> "boto3.Session":
        import boto3  # slow, and most requests use the table alone

        return boto3.Session()

    @cached_property
    def _dynamodb(self) -> DynamoDBClient:
        return DynamoDBClient()

    @cached_property
    def _table_client(self) -> TableClient:
        return DynamoDBTable(self._dynamodb, self._table)

    @cached_property
    def _s3(self) -> "S3Client":
        return self._create_s3()

    def _create_s3(self, key: AccessKey | None = None) -> "S3Client":
        """Return a client with the credentials ``key``, or with those of this process."""
        emulated = bool(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))
        # ``upload_origin`` tells browsers the address of presigned forms. In us-east-1 it would be the global endpoint's.
        address = {"addressing_style": "path" if emulated else "virtual", "us_east_1_regional_endpoint": "regional"}
        return self._session.client(
            "s3",
            config=_config({**_BUCKET, "s3": address}),
            aws_access_key_id=key.id if key else None,
            aws_secret_access_key=key.secret if key else None,
            aws_session_token=key.token if key else None,
        )

    @cached_property
    def _sqs(self) -> "SQSClient":
        return self._session.client("sqs", config=_config(_QUEUES))

    @cached_property
    def _states(self) -> "SFNClient":
        return self._session.client("stepfunctions", config=_config(_QUEUES))

    @cached_property
    def _scheduler(self) -> SchedulerClient:
        client: SchedulerClient = self._session.client("scheduler", config=_config(_QUEUES))
        return client

    @cached_property
    def _ssm(self) -> "SSMClient":
        return self._session.client("ssm", config=_config(_PARAMETERS))

    def get_parameters(self, names: Sequence[str]) -> Mapping[str, str]:
        """Read and decrypt up to ten parameters of the SSM parameter store. Omit those that do not exist.

        Raises:
            StorageUnavailable: SSM throttles or does not answer. This method does not retry.
            InternalError: SSM refuses the call.
        """
        with storage_errors():
            response = self._ssm.get_parameters(Names=list(names), WithDecryption=True)
        return {parameter["Name"]: parameter["Value"] for parameter in response["Parameters"]}

    def _credentials(self) -> "Credentials | None":
        return self._session.get_credentials()

    def connect(self) -> None:
        """Do now, instead of at the first request, what the first call of the table takes: its settings and the certificates."""
        self._dynamodb.prepare()
        if self._sessions is not None:
            self._sessions.prepare()

    def close(self) -> None:
        """Close the table's idle connections of the running event loop, in its next iteration."""
        if "_dynamodb" in self.__dict__:
            self._dynamodb.close()
        if self._sessions is not None:
            self._sessions.close()

    @property
    def shared(self) -> GuardedTable:
        """Return the part of the table that all tenants share: the limits of backends, and how many workers a tenant has."""
        return GuardedTable(self._table_client, BACKEND_PREFIX)

    def function(self, name: str) -> "TenantFunction":
        """Return the Lambda function ``name``, in the mode that gives each tenant id execution environments of its own."""
        from spass.aws.functions import LambdaFunction

        return LambdaFunction(name)

    @cached_property
    def schedules(self) -> Schedules:
        """Return the entries of the deployment's schedule group, of all tenants."""
        return EventBridgeSchedules(lambda: self._scheduler, self._job_targets)

    def for_tenant(self, tenant: TenantId) -> TenantStore:
        """Return the store of one tenant. All access to a tenant's data goes through such a store, and only such a store uses
        the credentials of a session of that tenant."""
        table = TenantTable(self._table_of(tenant), tenant)
        access = self._own_access if self._sessions is None else self._access_of(tenant, self._sessions)
        jobs = AwsJobs(lambda: self._sqs, lambda: self._states, self._job_targets, tenant)
        return TenantStore(
            tenant,
            table,
            S3Objects(access, self._bucket, tenant),
            S3Uploads(access, self._bucket, tenant),
            jobs,
            WorkLine(tenant, table, self.shared, jobs, self._work_bound),
        )

    def _table_of(self, tenant: TenantId) -> TableClient:
        if self._sessions is None:
            return self._table_client
        return DynamoDBTable(self._dynamodb, self._table, TenantKeys(self._sessions, tenant))

    def _access_of(self, tenant: TenantId, sessions: TenantSessions) -> S3Access:
        async def client() -> "S3Client":
            session = await sessions.get(tenant)
            if session.s3 is None:
                session.s3 = self._create_s3(session.key)
            return session.s3

        async def valid_seconds() -> int:
            return (await sessions.get(tenant)).expires - now_s()

        return S3Access(client, valid_seconds, is_of_tenant=True)

    @cached_property
    def _own_access(self) -> S3Access:
        async def client() -> "S3Client":
            return self._s3

        async def seconds() -> int:
            return valid_seconds(self._credentials())

        return S3Access(client, seconds)


def _config(options: Mapping[str, Any]) -> "Config":
    from botocore.config import Config

    return Config(**options)
