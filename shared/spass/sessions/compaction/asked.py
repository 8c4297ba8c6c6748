"""What a message of the queue of compactions asks for."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from spass.core.ids import JobId, TenantId

_JOB: Final = re.compile(r"job_[0-9a-z]{26}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that shall begin."""

    tenant: TenantId
    job: JobId


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing that anybody here can do; ``why`` holds nothing of what it said."""

    why: str


def asked_of(body: str, tenants: Collection[TenantId]) -> Asked | Dropped:
    """What the body of a message asks for, of one of the ``tenants``."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return Dropped("the message is no JSON")
    match said:
        case {"job": "compact", "tenant": str(tenant), "id": str(job)} if _JOB.fullmatch(job):
            return Asked(TenantId(tenant), JobId(job)) if tenant in tenants else Dropped("the tenant is not known")
    return Dropped("the message is of no known kind")
