"""The CDK's pinned command line and the templates have what `operate release` uses."""

import subprocess
from pathlib import Path

from .conftest import Deployment

ROOT = Path(__file__).resolve().parents[2]
# These are WATCHED and the options in operate/deployment.py, which needs boto3.
WATCHED = ("ServerErrors", "FunctionErrors", "AuditNotStored")
OPTIONS = ("--app", "--exclusively", "--require-approval", "--rollback-trigger-alarm-arns", "--monitoring-time-minutes")


def test_the_pinned_command_line_knows_the_options_of_a_release() -> None:
    command = [str(ROOT / "node_modules" / ".bin" / "cdk"), "deploy", "--help"]
    described = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [option for option in OPTIONS if option not in described] == []
    assert "'none' to clear" in " ".join(described.split())


def test_the_alarms_that_undo_a_release_have_their_logical_ids(prod: Deployment) -> None:
    alarms = {name[:-8] for name, _ in prod.resources("AWS::CloudWatch::Alarm")}
    assert {f"Monitoring{name}" for name in WATCHED} <= alarms


def test_the_url_of_the_gateway_is_an_output(prod: Deployment) -> None:
    assert "Url" in prod.api["Outputs"]
