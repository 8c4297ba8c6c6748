"""The origin of the presigned forms of uploads, for a process that does not import boto3."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_DOMAIN: Final = "amazonaws.com"
# A region's name begins with one of these prefixes if it is in a partition whose domain is another one.
_DOMAINS: Final[Mapping[str, str]] = {
    "cn-": "amazonaws.com.cn",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "eusc-": "amazonaws.eu",
}


def upload_origin(environment: Mapping[str, str]) -> str | None:
    """Return the origin to which a client posts the forms that ``TenantUploads`` signs, or None if there is no region: boto3 then
    signs nothing. ``environment`` are the variables that boto3 reads, and the bucket's name.

    boto3 addresses a bucket by its host, except at an emulator and if the name has a dot. No certificate covers a host with
    such a name, so its form goes to a path of S3's own host, and the source names that path too.
    """
    bucket = environment.get("SPASS_BUCKET") or "spass"
    if endpoint := environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"):
        parts = urlsplit(endpoint)
        return f"{parts.scheme}://{parts.netloc}"
    region = environment.get("AWS_DEFAULT_REGION")
    if not region:
        return None
    host = f"s3.{region}.{domain_of(region)}"
    return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"


def domain_of(region: str) -> str:
    """Return the domain of the hosts of AWS in ``region``."""
    return next((domain for prefix, domain in _DOMAINS.items() if region.startswith(prefix)), _DOMAIN)
