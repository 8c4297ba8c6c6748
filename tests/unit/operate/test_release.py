"""`operate release` deploys a commit step by step, and `release back` a kept one; a step that fails is named with what to do.

The CDK's command line is replaced: it writes an assembly, and deploys one into the account that a test answers for.
"""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from operate import __main__ as operate
from operate import check_settings, make, release, smoke
from operate.account import Account
from operate.assembly import read_assembly
from operate.checkout import Checkout
from spass.sdk.endpoint import Endpoint
from tests.unit.operate.answering_aws import BODY, DATA, NUMBER, REGION, STACK, AnsweringAws, Built, Refusal

FIRST, SECOND, THIRD = (digit * 40 for digit in "abc")
URL: Final = "https://api.example/prod"
ALARM_TYPE: Final = "AWS::CloudWatch::Alarm"
ALARMS: Final = {
    f"Monitoring{name}1234ABCD": name for name in ("ServerErrors", "SlowAnswers", "FunctionErrors", "AuditNotStored")
}


def arn(alarm: str) -> str:
    return f"arn:aws:cloudwatch:{REGION}:{NUMBER}:alarm:Spass-prod-{alarm}"


class Operator:
    """An operator in a checkout of ``commit``, whose assembly is ``built``. ``ran`` is what the CDK's command line was given."""

    def __init__(self, root: Path, aws: AnsweringAws) -> None:
        self.root, self.aws = root, aws
        self.commit, self.built = FIRST, Built()
        self.changed: tuple[str, ...] = ()
        self.raised: set[str] = set()
        self.state = "OK"
        self.fails: str | None = None
        self.smoke_status = 0
        self.ran: list[list[str]] = []
        self.tried: list[str | None] = []

    def release(self, commit: str, *arguments: str) -> int:
        self.commit = commit
        return operate.main(["release", "--env", "prod", *(arguments or ["--yes"])])

    def go_back(self, *arguments: str) -> int:
        return operate.main(["release", "back", "--env", "prod", "--yes", *arguments])

    def run(self, target: str, arguments: Sequence[str]) -> int:
        """Stand in for the CDK's command line."""
        self.ran.append([target, *arguments])
        if target == "synth":
            self.built.variables = {**self.built.variables, "release": self.commit}
            self.built.write(self.root / "cdk.out")
        elif target == "cdk":
            folder = Path(arguments[arguments.index("--app") + 1])
            assert not (folder / "asset.left").exists(), "only what is kept is deployed"
            if STACK in arguments and self.fails != "deploy":
                self._deploy(folder)
        return int(self.fails == target or (self.fails in ("deploy", "answer") and STACK in arguments))

    def _deploy(self, folder: Path) -> None:
        api, nested = read_assembly(folder, "prod").api.templates
        self.aws.has(api["Resources"] | {name: {"Type": ALARM_TYPE} for name in ALARMS}, nested["Resources"])
        listed = self.aws.answers["ListStackResources"]
        assert callable(listed)
        alarms = [
            {
                "LogicalResourceId": name,
                "ResourceType": ALARM_TYPE,
                "PhysicalResourceId": f"Spass-prod-{alarm}",
                "LastUpdatedTimestamp": 0,
                "ResourceStatus": "CREATE_COMPLETE",
            }
            for name, alarm in ALARMS.items()
        ]
        self.aws.answers["ListStackResources"] = lambda asked: (
            {"StackResourceSummaries": [*_summaries(listed, asked), *(alarms if asked["StackName"] == STACK else [])]}
        )
        self.aws.answers["DescribeAlarms"] = lambda asked: {
            "MetricAlarms": [
                {
                    "AlarmName": name,
                    "AlarmArn": arn(name.removeprefix("Spass-prod-")),
                    "StateValue": "ALARM" if name.removeprefix("Spass-prod-") in self.raised else self.state,
                }
                for name in asked["AlarmNames"]
            ]
        }

    @property
    def deployed(self) -> list[list[str]]:
        """Return the options of each deployment, without the folder."""
        return [[*run[1 : run.index("--app")], *run[run.index("--app") + 2 :]] for run in self.ran if run[0] == "cdk"]

    def kept(self) -> list[str]:
        folder = self.root / "releases" / "prod"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def _summaries(listed: Callable[[dict[str, Any]], Any], asked: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = listed(asked)["StackResourceSummaries"]
    return found


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    aws = AnsweringAws()
    aws.answers["DescribeStacks"] = {
        "Stacks": [
            {
                "StackName": STACK,
                "CreationTime": 0,
                "StackStatus": "UPDATE_COMPLETE",
                "Outputs": [{"OutputKey": "Url", "OutputValue": URL}],
            }
        ]
    }
    operator = Operator(tmp_path, aws)

    async def tried(endpoint: Endpoint, *, release: str | None) -> int:
        assert (endpoint.url, endpoint.token) == (URL, "a-token")
        operator.tried.append(release)
        return operator.smoke_status

    for module in (release, check_settings):
        monkeypatch.setattr(module, "read_checkout", lambda: Checkout(operator.commit, operator.changed))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "_FOLDER", tmp_path / "releases")
    monkeypatch.setattr(Account, "of_region", lambda _: aws.account)
    monkeypatch.setattr(make, "run", operator.run)
    monkeypatch.setattr(smoke, "run", tried)
    monkeypatch.setenv("SPASS_TOKEN", "a-token")
    yield operator
    assert not [*tmp_path.glob("releases/*/.unpacked*")]


@pytest.fixture
def released(operator: Operator) -> Operator:
    """Return an operator who has released three commits, a second apart, and runs the third."""
    for seconds, commit in enumerate((FIRST, SECOND, THIRD)):
        assert operator.release(commit) == 0
        os.utime(operator.root / "releases" / "prod" / f"{commit}.tar", (1000 + seconds, 1000 + seconds))
    operator.ran.clear()
    operator.tried.clear()
    return operator


def test_a_release_is_checked_kept_deployed_and_tried(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert operator.release(FIRST) == 0
    assert operator.ran[:2] == [["synth", "-c", "env=prod"], ["rehearse"]]
    plain = ["--exclusively", "--require-approval", "never"]
    assert operator.deployed == [["deploy", DATA, *plain], ["deploy", STACK, *plain, "--rollback-trigger-alarm-arns", "none"]]
    assert operator.tried == [FIRST]
    output = capsys.readouterr().out
    assert f"This deploys {FIRST} as prod into account {NUMBER}, {REGION}.\nIt runs no release with a name now." in output
    assert "No alarm watches it" in output
    assert output.endswith("To go back: .venv/bin/python -m operate release back --env prod\n")


def test_the_assembly_is_kept_without_what_earlier_syntheses_left(operator: Operator) -> None:
    assert operator.release(FIRST) == 0
    assert operator.kept() == [f"{FIRST}.tar"]
    with tarfile.open(operator.root / "releases" / "prod" / f"{FIRST}.tar") as archive:
        names = archive.getnames()
    assert {name.partition("/")[0] for name in names} == {"cdk.out"}
    assert {"cdk.out/manifest.json", "cdk.out/asset.code/gateway.yaml"} <= {*names}
    assert not [name for name in names if "asset.left" in name]


def test_three_alarms_undo_an_upgrade(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert operator.release(FIRST) == operator.release(SECOND) == 0
    watched = [arn(name) for name in ("AuditNotStored", "FunctionErrors", "ServerErrors")]
    assert operator.deployed[-1][5:] == ["--rollback-trigger-alarm-arns", *watched, "--monitoring-time-minutes", "10"]
    assert DATA in operator.deployed[-2]
    assert "--rollback-trigger-alarm-arns" not in operator.deployed[-2]
    assert "is raised within 10 minutes." in capsys.readouterr().out


def test_an_alarm_that_is_raised_before_a_release_does_not_undo_it(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert operator.release(FIRST) == 0
    operator.raised = {"ServerErrors"}
    assert operator.release(SECOND) == 0
    assert arn("ServerErrors") not in operator.deployed[-1]
    assert arn("FunctionErrors") in operator.deployed[-1]
    assert "These are raised already, so they do not watch it: ServerErrors." in capsys.readouterr().out


def test_an_alarm_without_data_yet_undoes_a_release(operator: Operator) -> None:
    operator.state = "INSUFFICIENT_DATA"
    assert operator.release(FIRST) == operator.release(SECOND) == 0
    assert arn("ServerErrors") in operator.deployed[-1]


@pytest.mark.parametrize("reply", ["n", ""])
def test_nothing_is_changed_without_a_yes(operator: Operator, monkeypatch: pytest.MonkeyPatch, reply: str) -> None:
    monkeypatch.setattr("builtins.input", lambda _: reply)
    assert operator.release(FIRST, "--env", "prod") == 1
    assert (operator.deployed, operator.kept()) == ([], [])


def test_changed_files_are_refused_and_named(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    operator.changed = tuple(f"file-{number}" for number in range(12))
    assert operator.release(FIRST) == 1
    assert operator.ran == []
    output = capsys.readouterr().out
    assert f"The step 'checkout' failed: Files differ from commit {FIRST}: file-0, " in output
    assert "file-9 and 2 more. Commit or remove them." in output


def test_a_folder_without_a_commit_is_refused(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert operator.release("unknown") == 1
    assert operator.ran == []
    assert "is not a checkout of git, so the release would have no name." in capsys.readouterr().out


def test_a_checkout_that_changes_during_the_synthesis_is_refused(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pull_and_run(target: str, arguments: Sequence[str]) -> int:
        operator.commit = SECOND
        return operator.run(target, arguments)

    monkeypatch.setattr(make, "run", pull_and_run)
    assert operator.release(FIRST) == 1
    assert operator.ran == [["synth", "-c", "env=prod"]]
    assert f"The assembly is of {SECOND}, not of {FIRST}" in capsys.readouterr().out


def test_a_release_that_could_not_be_tried_does_not_start(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPASS_TOKEN")
    assert operator.release(FIRST) == 1
    assert operator.ran == []
    assert "The step 'token' failed: Set SPASS_TOKEN" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["release", "back"])
def test_a_token_that_cannot_be_sent_is_refused_before_anything_is_deployed(
    released: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("SPASS_TOKEN", "a planted\n")
    assert (released.release("d" * 40) if command == "release" else released.go_back()) == 1
    assert released.ran == []
    output = capsys.readouterr().out
    assert "The step 'token' failed: The token (SPASS_TOKEN) contains a blank" in output
    assert "planted" not in output


def test_a_failed_synthesis_rehearsal_or_check_deploys_nothing(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    operator.fails = "synth"
    assert operator.release(FIRST) == 1
    assert "The step 'synth' failed: Nothing was deployed." in capsys.readouterr().out
    operator.fails = "rehearse"
    assert operator.release(FIRST) == 1
    assert "The step 'rehearse' failed: Nothing was deployed." in capsys.readouterr().out
    operator.fails = None
    operator.aws.answers["GetParameter"] = Refusal("ParameterNotFound")
    assert operator.release(FIRST) == 1
    assert "The step 'check' failed: Nothing was deployed. Mend the errors above" in capsys.readouterr().out
    assert (operator.deployed, operator.kept()) == ([], [])


def test_a_deployment_that_was_undone_is_not_kept(released: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    released.fails = "deploy"
    assert released.release("d" * 40) == 1
    assert released.kept() == [f"{commit}.tar" for commit in (FIRST, SECOND, THIRD)]
    assert released.tried == []
    assert f"The step 'deploy' failed: prod runs {THIRD}. Mend what CloudFormation names above" in capsys.readouterr().out


def test_a_release_that_runs_although_its_deployment_seems_to_have_failed_is_kept(released: Operator) -> None:
    released.fails = "answer"
    assert released.release("d" * 40) == 1
    assert released.kept() == [f"{commit}.tar" for commit in (FIRST, SECOND, THIRD, "d" * 40)]


def test_an_undone_second_deployment_of_a_commit_leaves_the_kept_one(released: Operator) -> None:
    released.fails = "deploy"
    file = released.root / "releases" / "prod" / f"{THIRD}.tar"
    before = file.stat()
    assert released.release(THIRD) == 1
    assert (file.stat().st_ino, file.stat().st_mtime) == (before.st_ino, before.st_mtime)


def test_a_release_whose_process_was_killed_is_kept_before_the_next_one(released: Operator) -> None:
    folder = released.root / "releases" / "prod"
    (folder / f"{THIRD}.tar").rename(folder / f"{THIRD}.tar.deploying")
    assert released.release("d" * 40) == 0
    assert released.kept() == [f"{commit}.tar" for commit in (FIRST, SECOND, THIRD, "d" * 40)]


def test_a_release_whose_process_was_killed_is_kept_if_it_runs(released: Operator) -> None:
    folder = released.root / "releases" / "prod"
    (folder / f"{THIRD}.tar").rename(folder / f"{THIRD}.tar.deploying")
    (folder / f"{'d' * 40}.tar.deploying").touch()
    assert released.go_back() == 0
    assert released.kept() == [f"{commit}.tar" for commit in (FIRST, SECOND, THIRD)]
    assert released.tried == [SECOND]


def test_a_release_that_could_not_be_kept_whole_does_not_replace_the_kept_one(
    released: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full_disk:
        full_disk.setattr(tarfile.TarFile, "add", _fail_for_want_of_space)
        assert released.release(THIRD) == 1
    assert released.deployed == []
    assert released.go_back("--to", SECOND) == 0
    assert released.go_back("--to", THIRD) == 0
    assert released.kept() == [f"{commit}.tar" for commit in (FIRST, SECOND, THIRD)]


def _fail_for_want_of_space(*_: object, **__: object) -> None:
    raise OSError("No space left on device")


def test_a_failed_smoke_test_says_how_to_go_back(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    operator.smoke_status = 1
    assert operator.release(FIRST) == 1
    assert "The step 'smoke' failed, and the release is deployed. To go back: .venv/bin/python" in capsys.readouterr().out
    assert operator.kept() == [f"{FIRST}.tar"]


def test_back_deploys_the_release_before_the_running_one_and_builds_nothing(
    released: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert released.go_back() == 0
    assert [run[0] for run in released.ran] == ["cdk"]
    assert released.deployed[0][:2] == ["deploy", STACK]  # what is stored stays
    assert arn("ServerErrors") in released.deployed[0]
    assert released.tried == [SECOND]
    output = capsys.readouterr().out
    assert f"  {THIRD}  deployed 1970-01-01 00:16 UTC\n" in output
    assert f"It runs {THIRD} now." in output
    assert f"{SECOND} is deployed again." in output


def test_back_never_chooses_a_release_that_was_left(released: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert released.go_back() == 0
    assert released.release("d" * 40) == 0
    assert released.go_back() == 0
    assert released.tried == [SECOND, "d" * 40, SECOND]
    assert f"  {THIRD}  left by going back\n" in capsys.readouterr().out
    assert released.go_back("--to", THIRD[:6]) == 0  # unless it is named
    assert released.tried[-1] == THIRD


def test_back_from_the_first_release_does_not_lead_to_one_that_was_left(released: Operator) -> None:
    assert released.go_back() == released.go_back() == 0
    assert released.go_back() == 1
    assert released.tried == [SECOND, FIRST]


@pytest.mark.parametrize(
    ("start", "problem"), [("f", "no kept release begins with f"), ("", "3 kept releases begin with ")], ids=["none", "several"]
)
def test_a_commit_that_names_no_single_kept_release_is_refused(
    released: Operator, capsys: pytest.CaptureFixture[str], start: str, problem: str
) -> None:
    assert released.go_back("--to", start) == 1
    assert released.ran == []
    output = capsys.readouterr().out
    assert f"The step 'kept' failed: {problem}" in output
    assert all(commit in output for commit in (FIRST, SECOND, THIRD))


def test_without_a_kept_release_before_the_running_one_there_is_no_default(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert operator.go_back() == 1
    assert "releases/prod has no release. Check out the commit to go back to" in capsys.readouterr().out
    assert operator.release(FIRST) == 0
    assert operator.go_back() == 1
    assert f"No release before the running one, {FIRST}, is kept. Name one: --to COMMIT" in capsys.readouterr().out


def test_there_is_no_way_back_across_the_move_of_the_api(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    operator.built = Built(api={"Api": {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Name": "spass-prod"}}})
    assert operator.release(FIRST) == 0
    operator.built = Built(api={"Api": BODY})
    assert operator.release(SECOND) == 0
    operator.ran.clear()
    assert operator.go_back("--to", FIRST) == 1
    assert operator.ran == []
    assert "This release is older than the API as one body" in capsys.readouterr().out


@pytest.mark.parametrize("variable", ["SPASS_TABLE", "SPASS_BUCKET"])
def test_back_to_another_table_or_bucket_is_refused(
    operator: Operator, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    assert operator.release(FIRST) == 0
    operator.built = Built(variables={variable: "restored"})
    assert operator.release(SECOND) == 0
    operator.ran.clear()
    assert operator.go_back("--to", FIRST) == 1
    assert operator.ran == []
    assert f"has the {variable} " in capsys.readouterr().out


def test_back_into_another_account_is_refused(released: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    released.built = Built(account="999988887777")
    folder = released.root / "releases" / "prod"
    released.run("synth", [])
    with tarfile.open(folder / f"{SECOND}.tar", "w") as archive:
        released.commit = SECOND
        released.run("synth", [])
        archive.add(released.root / "cdk.out", "cdk.out")
    os.utime(folder / f"{SECOND}.tar", (1001, 1001))
    released.ran.clear()
    assert released.go_back() == 1
    assert released.ran == []
    assert "prod belongs to 999988887777" in capsys.readouterr().out


def test_back_into_an_account_without_the_bootstrap_stack_is_refused(
    released: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    released.aws.answers["GetParameter"] = Refusal("ParameterNotFound")
    assert released.go_back() == 1
    assert released.ran == []
    assert "has no bootstrap stack of the CDK." in capsys.readouterr().out


def test_a_file_that_holds_another_release_is_refused(released: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    folder = released.root / "releases" / "prod"
    (folder / f"{FIRST}.tar").replace(folder / f"{SECOND}.tar")
    os.utime(folder / f"{SECOND}.tar", (1001, 1001))
    assert released.go_back() == 1
    assert released.ran == []
    assert f"holds the release {FIRST}: somebody has renamed it." in capsys.readouterr().out


def test_a_kept_file_that_is_cut_off_is_named(released: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    file = released.root / "releases" / "prod" / f"{SECOND}.tar"
    file.write_bytes(file.read_bytes()[:700])
    os.utime(file, (1001, 1001))
    assert released.go_back() == 1
    assert f"The kept release could not be written or read: {file}: " in capsys.readouterr().out


def outside(archive: tarfile.TarFile) -> None:
    member = tarfile.TarInfo("cdk.out/../../../planted")
    archive.addfile(member)


def link_outside(archive: tarfile.TarFile) -> None:
    member = tarfile.TarInfo("cdk.out/planted")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc"
    archive.addfile(member)


@pytest.mark.parametrize("plant", [outside, link_outside])
def test_a_kept_file_that_leads_out_of_its_folder_is_refused(
    released: Operator, capsys: pytest.CaptureFixture[str], plant: Callable[[tarfile.TarFile], None]
) -> None:
    file = released.root / "releases" / "prod" / f"{SECOND}.tar"
    with tarfile.open(file, "a") as archive:
        plant(archive)
    os.utime(file, (1001, 1001))
    assert released.go_back() == 1
    assert released.ran == []
    assert f"The kept release could not be written or read: {file}: " in capsys.readouterr().out
    assert not [*released.root.rglob("planted")]


def test_back_without_a_token_says_how_to_try_it(
    released: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPASS_TOKEN")
    assert released.go_back() == 0
    assert f"Not tried, without SPASS_TOKEN: .venv/bin/python -m operate smoke --url {URL}" in capsys.readouterr().out


def test_a_release_of_a_named_commit_is_refused(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    assert operator.release(FIRST, "--to", SECOND) == 1
    assert "--to belongs to `release back`." in capsys.readouterr().out


def test_credentials_that_may_not_read_the_alarms_are_named(released: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    released.aws.answers["DescribeAlarms"] = Refusal("AccessDenied")
    assert released.go_back() == 1
    assert released.ran == []
    assert "AWS did not answer: An error occurred (AccessDenied) when calling the DescribeAlarms" in capsys.readouterr().out
