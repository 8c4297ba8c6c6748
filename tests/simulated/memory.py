"""A table and a bucket in memory for tests with real threads and the real time: above all for those that make every AWS call go
wrong in every way.

Such a test makes thousands of calls, which take an emulator ten times as long. ``tests/unit/simulated`` holds the two to the
same answers; with SPASS_SOAK=1 these tests run on the emulator, which their fixture ``emulated_aws`` is.
"""

import os
import threading
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from spass.aws.clients import Aws
from spass.aws.job_targets import NO_JOB_TARGETS, JobTargets
from spass.core.time import now_s
from tests.simulated.aws import SimulatedAws

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


WITH_QUEUE: Final = JobTargets(queue="jobs")


class _SerializedClient:
    """Calls come from many threads; what lies in memory takes them one after the other."""

    def __init__(self, client: object) -> None:
        self._client = client
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**parameters: Any) -> Any:
            with self._lock:
                return method(**parameters)

        return call


class MemoryAws(SimulatedAws):
    """For real threads and the real time."""

    def __init__(self, places: JobTargets = NO_JOB_TARGETS) -> None:
        super().__init__(now_s, places)
        self.__dict__["_s3"] = cast("S3Client", _SerializedClient(self.bucket))


def table_for_faults(emulated: Aws) -> Aws:
    """A table in memory beside the emulator's bucket, which knows versions; with SPASS_SOAK=1 both are the emulator's."""
    if os.environ.get("SPASS_SOAK"):
        return emulated
    aws = MemoryAws(WITH_QUEUE)
    aws.__dict__["_s3"] = emulated._s3
    return aws


def aws_for_faults(request: pytest.FixtureRequest) -> Aws:
    """In memory, and on the emulator with SPASS_SOAK=1."""
    if os.environ.get("SPASS_SOAK"):
        on_emulator: Aws = request.getfixturevalue("emulated_aws")
        return on_emulator
    return MemoryAws(WITH_QUEUE)
