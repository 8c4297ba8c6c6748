"""The job targets of tests, and the definition of the state machine of compactions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spass.aws.job_targets import JobTargets

COMPACTION_MACHINE: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "infra" / "compaction.asl.json").read_text()
)
JOB_TARGETS: Final = JobTargets(queue="jobs", compaction_queue="compactions", compaction_machine="compaction")
