"""A table and a bucket in memory for tests with real threads and the real time, above all for tests with faults at all AWS calls.

Such a test makes thousands of calls, and an emulator takes ten times as long for them. ``tests/unit/simulated`` checks that both
give the same answers. With SPASS_SOAK=1, these tests run on the emulator of their fixture ``emulated_aws``.
"""

import os
from typing import Final

import pytest

from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from spass.testing.aws import MemoryAws

WITH_QUEUE: Final = JobTargets(queue="jobs")


def table_for_faults(emulated: Aws) -> Aws:
    """Return a table in memory with the emulator's bucket, which has versions. With SPASS_SOAK=1, return both from it."""
    if os.environ.get("SPASS_SOAK"):
        return emulated
    aws = MemoryAws(WITH_QUEUE)
    aws.__dict__["_s3"] = emulated._s3
    return aws


def aws_for_faults(request: pytest.FixtureRequest) -> Aws:
    """Return AWS in memory, or the emulator with SPASS_SOAK=1."""
    if os.environ.get("SPASS_SOAK"):
        on_emulator: Aws = request.getfixturevalue("emulated_aws")
        return on_emulator
    return MemoryAws(WITH_QUEUE)
