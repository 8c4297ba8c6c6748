"""A table and a bucket in memory for tests with real threads and the real time, above all for tests with faults at all AWS calls.

Such a test makes thousands of calls, and an emulator takes ten times as long for them. ``tests/unit/simulated`` checks that both
give the same answers. With SPASS_SOAK=1, these tests run on the emulator of their fixture ``emulated_aws``.
"""

from typing import Final

import pytest

from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from spass.testing.aws import MemoryAws
from tests.sampling import SOAK

WITH_QUEUE: Final = JobTargets(queue="jobs")


def aws_for_faults(request: pytest.FixtureRequest, *, versioned: bool = False) -> Aws:
    """Return AWS in memory, or the emulator with SPASS_SOAK=1. A ``versioned`` bucket keeps all versions of an object, as that of
    the emulator does."""
    if SOAK:
        on_emulator: Aws = request.getfixturevalue("emulated_aws")
        return on_emulator
    return MemoryAws(WITH_QUEUE, versioned=versioned)
