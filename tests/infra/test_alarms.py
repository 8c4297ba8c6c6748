"""Alarms, runbooks, saved queries and the dashboard, from outside: from the template and the page of operations."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.constructs.machine import COMPACTION
from infra.queries import FIRST_BYTE, LATENCY_BY_SURFACE, QUERIES, Logs
from tests.insights import fields_read

from .conftest import CALLING, Deployment, function_name

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
MOST_METRICS = 20
MOST_GROUPS = 50
"""The log groups that one query may name."""
ONE_EVENT = {
    "AuditNotStored",
    "DroppedTicks",
    "FailedBackups",
    "FailedCompactions",
    "FailedCopies",
    "FailedJobs",
    "FailedRuns",
    "FunctionErrors",  # a sweep that takes too long fails once an hour
    "TimedOutCompactions",
    "UnstartedCompactions",
}
_DESCRIPTION = re.compile(r"[A-Z][^.]*\. Runbook: docs/operations\.md#([a-z]+)")


def _runbooks() -> dict[str, str]:
    """Return the text of each runbook by the anchor of its heading."""
    text = PAGE.split("## Runbooks\n", 1)[1].split("\n## ", 1)[0]
    _, *parts = re.split(r"(?m)^### (\w+)$", text)
    return {title.lower(): part for title, part in zip(parts[::2], parts[1::2], strict=True)}


def alarms_of(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """Return the properties of each alarm by the anchor of its runbook."""
    alarms: dict[str, dict[str, Any]] = {}
    for _, alarm in deployment.resources("AWS::CloudWatch::Alarm"):
        found = _DESCRIPTION.fullmatch(alarm["Properties"]["AlarmDescription"])
        assert found, alarm
        assert found[1] not in alarms
        alarms[found[1]] = alarm["Properties"]
    return alarms


def _dimensions(alarm: dict[str, Any]) -> dict[str, Any]:
    return {one["Name"]: one["Value"] for one in alarm.get("Dimensions", [])}


def test_each_alarm_has_one_runbook_and_each_runbook_one_alarm(prod: Deployment, extended: Deployment) -> None:
    assert sorted(alarms_of(extended)) == sorted(_runbooks())
    assert alarms_of(extended).keys() - alarms_of(prod).keys() == {"failedbackups", "failedcopies"}
    titles = re.findall(r"(?m)^### (\w+)$", PAGE)
    assert len(titles) == len(set(titles))


def test_each_alarm_reads_one_metric_and_all_read_at_most_twenty(extended: Deployment) -> None:
    alarms = alarms_of(extended)
    assert len(alarms) <= MOST_METRICS
    for alarm in alarms.values():
        assert {"MetricName", "Namespace"} <= alarm.keys(), "an expression would be billed for each of its metrics"
        assert "Metrics" not in alarm


def test_an_alarm_needs_two_of_three_periods_unless_one_event_is_enough(extended: Deployment) -> None:
    once = {name.lower() for name in ONE_EVENT}
    for name, alarm in alarms_of(extended).items():
        periods = (alarm["DatapointsToAlarm"], alarm["EvaluationPeriods"], alarm["Period"])
        assert periods == ((1, 1, 300) if name in once else (2, 3, 300)), name
        assert alarm["TreatMissingData"] == "notBreaching"
        if name in once:
            assert alarm["Threshold"] == 1


def test_a_runbook_says_what_to_look_at_what_to_do_and_when_it_is_over(prod: Deployment) -> None:
    saved = {properties["Name"].removeprefix("spass-prod/") for properties in _queries(prod)}
    named: set[str] = set()
    for name, text in _runbooks().items():
        assert text.strip()[0].isupper(), f"{name} begins with its meaning"
        for part in ("Look", "Do", "Over"):
            assert text.count(f"\n- **{part}**: ") == 1, (name, part)
        queries = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text)) - prod.functions().keys()
        assert queries <= saved, name
        assert queries, f"{name} names no saved query"
        named |= queries
    assert named == saved, "a query that no runbook names is not needed"


def _queries(deployment: Deployment) -> list[dict[str, Any]]:
    return [one["Properties"] for _, one in deployment.resources("AWS::Logs::QueryDefinition")]


def test_a_saved_query_names_at_most_fifty_log_groups_or_the_prefix_of_all(prod: Deployment) -> None:
    queries = {one["Name"]: one for one in _queries(prod)}
    assert len(queries) == 5
    stack = "Spass-prod-Api"
    for name, query in queries.items():
        groups = query.get("LogGroupNames")
        if groups is None:
            assert query["QueryString"].startswith(f"SOURCE logGroups(namePrefix: ['{stack}-'])\n| "), name
        else:
            assert 0 < len(groups) <= MOST_GROUPS, name
            assert "SOURCE" not in query["QueryString"]
    assert _named_functions(prod, queries["spass-prod/cost-by-tenant"]) == CALLING
    assert _named_functions(prod, queries["spass-prod/refusals-by-bound"]) >= CALLING | {"streams-get", "managed-run-stream"}


def _named_functions(deployment: Deployment, query: dict[str, Any]) -> set[str]:
    groups = dict(deployment.resources("AWS::Logs::LogGroup"))
    names = set()
    for reference in query["LogGroupNames"]:
        output = reference["Fn::GetAtt"][1].removeprefix("Outputs.")
        (group,) = {
            stack["Outputs"][output]["Value"]["Ref"] for stack in deployment.nested() if output in stack.get("Outputs", {})
        }
        names.add(function_name(groups[group]["Properties"]))
    return names


def test_the_queries_of_the_access_log_read_fields_that_its_lines_have(prod: Deployment) -> None:
    ((_, stage),) = prod.resources("AWS::ApiGateway::Stage")
    written = json.loads(stage["Properties"]["AccessLogSetting"]["Format"]).keys()
    of_access = [query.lines for query in QUERIES if query.logs is Logs.ACCESS]
    for lines in (*of_access, LATENCY_BY_SURFACE, FIRST_BYTE):
        assert fields_read(lines) - written == set()
    shown = json.dumps(_widgets(prod))
    for lines in (LATENCY_BY_SURFACE, FIRST_BYTE):
        assert json.dumps("\n| ".join(lines))[1:-1] in shown


@pytest.mark.parametrize("name", ["dev", "staging"])
def test_other_environments_have_no_alarm_query_or_dashboard(deployments: dict[str, Deployment], name: str) -> None:
    for kind in ("AWS::CloudWatch::Alarm", "AWS::Logs::QueryDefinition", "AWS::CloudWatch::Dashboard", "AWS::SNS::Topic"):
        assert not list(deployments[name].resources(kind))


def _widgets(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the properties of the widgets of the dashboard. A reference within the body is written as its JSON."""
    ((_, dashboard),) = deployment.resources("AWS::CloudWatch::Dashboard")
    parts = dashboard["Properties"]["DashboardBody"]["Fn::Join"][1]
    body = "".join(part if isinstance(part, str) else json.dumps(json.dumps(part))[1:-1] for part in parts)
    return [widget["properties"] for widget in json.loads(body)["widgets"]]


def test_the_dashboard_has_eight_widgets_of_fewer_metrics_than_are_free(prod: Deployment) -> None:
    widgets = _widgets(prod)
    assert [widget["title"] for widget in widgets] == [
        "Requests",
        "Errors",
        "Latency by surface",
        "First byte of streams",
        "Age of the oldest message, seconds",
        "Dead letters",
        "Functions at once",
        "USD per hour",
    ]
    assert sum(len(widget.get("metrics", [])) for widget in widgets) < 50
    assert '"SERVICE_QUOTA(used)"' in json.dumps(widgets)
    ((stage, _),) = prod.resources("AWS::ApiGateway::Stage")
    assert json.dumps(widgets[0]["metrics"]).count(stage) == 1


def test_each_alarm_watches_a_resource_of_the_deployment(prod: Deployment) -> None:
    """The metrics of the gateway itself are compared with real lines by the tests of the library."""
    alarms = alarms_of(prod)
    watched = {name: (alarm["Namespace"], alarm["MetricName"], _dimensions(alarm)) for name, alarm in alarms.items()}
    ((stage, _),) = prod.resources("AWS::ApiGateway::Stage")
    api = {"ApiName": "spass-prod", "Stage": {"Ref": stage}}
    ((group, _),) = prod.resources("AWS::Scheduler::ScheduleGroup")
    ((stream, _),) = prod.resources("AWS::KinesisFirehose::DeliveryStream")
    table = {"TableName": {"Fn::ImportValue": "spass-prod-TableName"}}
    assert watched["servererrors"] == ("AWS/ApiGateway", "5XXError", api)
    assert watched["slowanswers"] == ("AWS/ApiGateway", "Latency", api)
    assert watched["functionerrors"] == ("AWS/Lambda", "Errors", {})
    assert watched["functionthrottles"] == ("AWS/Lambda", "Throttles", {})
    assert watched["auditnotstored"] == ("Spass/prod", "audit_not_stored", {})
    assert watched["tablereadthrottles"] == ("AWS/DynamoDB", "ReadThrottleEvents", table)
    assert watched["tablewritethrottles"] == ("AWS/DynamoDB", "WriteThrottleEvents", table)
    assert watched["droppedticks"] == ("AWS/Scheduler", "InvocationDroppedCount", {"ScheduleGroup": {"Ref": group}})
    assert watched["archivelate"] == ("AWS/Firehose", "DeliveryToS3.DataFreshness", {"DeliveryStreamName": {"Ref": stream}})
    for name, metric in (("failedcompactions", "ExecutionsFailed"), ("timedoutcompactions", "ExecutionsTimedOut")):
        assert watched[name][:2] == ("AWS/States", metric)
        ((dimension, machine),) = watched[name][2].items()
        assert dimension == "StateMachineArn"
        assert prod.jobs["Outputs"][machine["Fn::GetAtt"][1].removeprefix("Outputs.")]["Value"] == {
            "Ref": prod.machine(COMPACTION)[0]
        }
    for name, metric, export in (
        ("oldestjob", "ApproximateAgeOfOldestMessage", "QueueArn"),
        ("oldestcompaction", "ApproximateAgeOfOldestMessage", "CompactionQueueArn"),
        ("oldestrun", "ApproximateAgeOfOldestMessage", "RunQueueArn"),
        ("failedjobs", "ApproximateNumberOfMessagesVisible", "FailedJobsArn"),
        ("unstartedcompactions", "ApproximateNumberOfMessagesVisible", "FailedCompactionsArn"),
        ("failedruns", "ApproximateNumberOfMessagesVisible", "FailedRunsArn"),
    ):
        assert watched[name][:2] == ("AWS/SQS", metric)
        assert f'"spass-prod-{export}"' in json.dumps(watched[name][2])
    assert len(watched) == 17


def test_a_failed_daily_copy_raises_an_alarm_of_the_vault_where_it_began(extended: Deployment) -> None:
    alarms = alarms_of(extended)
    (vault,) = [one["Properties"] for _, one in extended.resources("AWS::Backup::BackupVault")]
    for name, metric in (("failedbackups", "NumberOfBackupJobsFailed"), ("failedcopies", "NumberOfCopyJobsFailed")):
        alarm = alarms[name]
        assert (alarm["Namespace"], alarm["MetricName"], alarm["Statistic"]) == ("AWS/Backup", metric, "Sum")
        assert _dimensions(alarm) == {"BackupVaultName": vault["BackupVaultName"]}
