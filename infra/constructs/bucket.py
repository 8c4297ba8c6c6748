"""The one bucket: segments of indices, turns too large for the table, the files that tenants upload, and the audit's archive."""

from typing import Final

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.constructs.acknowledge import acknowledge

# The gateway tags the answers that it stores for idempotent replay, which it promises for 24 hours.
_TRANSIENT_TAG: Final = {"lifetime": "days"}
_TRANSIENT_DAYS: Final = 2
# After ingestion the index has the file's content. A month leaves time to notice a gap, to inspect the file, or to redrive failed
# messages, which the queue keeps for 14 days.
_UPLOAD_DAYS: Final = 30
UPLOADS: Final = "uploads/"
AUDIT: Final = "audit/"


class Bucket(Construct):
    """A private, encrypted, TLS-only, versioned bucket that outlives its stack.

    For ``recovery_days``, versions allow to undo a deletion, as with the table. After that, deleted data cannot be recovered.
    The audit archive keeps its objects for ``archive_days``, or without an end if that is None. ``key`` encrypts
    the objects, through a key of the bucket's own that S3 renews; None means S3's own keys.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        recovery_days: int,
        archive_days: int | None,
        key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        archive = [] if archive_days is None else [_expiring("audit", AUDIT, archive_days)]
        self.resource = s3.Bucket(
            self,
            "Bucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            versioned=True,
            # Browsers post presigned forms from any page. The signed form is the authority: it has no cookie and no token.
            cors=[s3.CorsRule(allowed_methods=[s3.HttpMethods.POST], allowed_origins=["*"])],
            removal_policy=RemovalPolicy.RETAIN,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="deleted",
                    noncurrent_version_expiration=Duration.days(recovery_days),
                    expired_object_delete_marker=True,
                    abort_incomplete_multipart_upload_after=Duration.days(1),
                ),
                s3.LifecycleRule(id="transient", tag_filters=_TRANSIENT_TAG, expiration=Duration.days(_TRANSIENT_DAYS)),
                _expiring("uploads", UPLOADS, _UPLOAD_DAYS),
                *archive,
            ],
        )
        acknowledge(
            self.resource,
            {
                "AwsSolutions-S1": "Server access logs need a second bucket, with a list of every tenant's objects in it. "
                "Only the gateway's roles reach this bucket, and the gateway writes an audit record per call. "
                "An operator who needs them turns on CloudTrail data events."
            },
        )


def _expiring(rule: str, prefix: str, days: int) -> s3.LifecycleRule:
    return s3.LifecycleRule(id=rule, prefix=prefix, expiration=Duration.days(days))
