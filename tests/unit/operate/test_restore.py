"""Test the questions, refusals, output and marks of `operate restore`. The drill tests the losses themselves."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from operate import __main__ as operate
from operate import restore as command
from operate.account import Account, AccountUnreadable
from operate.object_versions import ObjectVersions
from operate.recovery import RestoreRefused, TableRecovery, Window
from operate.restore import Restore
from operate.restored_table import RestoredTable
from operate.storage import NotDeployed, Storage
from spass.store.restored import LOST
from tests.drill.drill import CopiedTable, create_table
from tests.unit.operate.answering_aws import Built

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

AT: Final = datetime(2026, 11, 24, 10, tzinfo=UTC)
TARGET: Final = "spass-prod-20261124T100000Z"
STORAGE: Final = Storage("used", "objects", "objects")
SESSION: Final = {"pk": {"S": "T#demo#SES#ses_1"}}
ITEMS: Final[Sequence[dict[str, Any]]] = (
    {**SESSION, "sk": {"S": "HEAD"}, "next_seq": {"N": "5"}, "user": {"S": "ada"}},
    {**SESSION, "sk": {"S": "TURN#0000000001"}, "next_seq": {"N": "3"}, "body_object": {"S": "sessions/ses_1/a.json"}},
    {**SESSION, "sk": {"S": "TURN#0000000003"}, "next_seq": {"N": "5"}, "body_object": {"S": "sessions/ses_1/b.json"}},
)
KEYS: Final = ("T/demo/sessions/ses_1/a.json", "T/demo/sessions/ses_1/b.json")


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "eu-central-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        create_table(boto3.client("dynamodb"), "used")
        yield


@pytest.fixture
def s3() -> "S3Client":
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="objects", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    s3.put_bucket_versioning(Bucket="objects", VersioningConfiguration={"Status": "Enabled"})
    for key in KEYS:
        s3.put_object(Bucket="objects", Key=key, Body=b"{}")
        s3.delete_object(Bucket="objects", Key=key)
    return s3


def make(storage: Storage = STORAGE, recovery: TableRecovery | None = None) -> Restore:
    recovery = recovery or CopiedTable(boto3.client("dynamodb"), "used", AT, ITEMS)
    return Restore("prod", storage, recovery, ObjectVersions(boto3.client("s3"), storage.bucket, AT))


def marks() -> Mapping[str, Any]:
    items = boto3.client("dynamodb").scan(TableName=TARGET)["Items"]
    return {f"{item['pk']['S']} {item['sk']['S']}": item[LOST]["M"] for item in items if LOST in item}


def expire(s3: "S3Client", key: str) -> None:
    for one in s3.list_object_versions(Bucket="objects", Prefix=key)["Versions"]:
        s3.delete_object(Bucket="objects", Key=key, VersionId=one["VersionId"])


def test_what_is_back_is_counted_and_the_lines_to_deploy_are_printed(s3: "S3Client", capsys: pytest.CaptureFixture[str]) -> None:
    assert make().run() == 0
    output = capsys.readouterr().out
    assert "Checked: 1 x session." in output
    assert "Objects that they name: 0 right, 2 brought back, 0 set back, 0 gone. Marks that changed: 0." in output
    assert f"prod:\n  restored: {{table: {TARGET}}}\n" in output
    assert marks() == {}


def test_a_restored_bucket_that_is_in_use_stays_in_the_lines(s3: "S3Client", capsys: pytest.CaptureFixture[str]) -> None:
    assert make(Storage("used", "objects", "own-objects")).run() == 0
    assert f"  restored: {{table: {TARGET}, bucket: objects}}\n" in capsys.readouterr().out


def test_what_is_gone_is_named_and_marked_without_a_user_or_a_text(s3: "S3Client", capsys: pytest.CaptureFixture[str]) -> None:
    expire(s3, KEYS[1])
    assert make().run() == 1
    output = capsys.readouterr().out
    assert "session demo/ses_1: lost: messages 3 to 4\n" in output
    assert "ada" not in output
    parts = {"L": [{"S": "messages 3 to 4"}]}
    assert marks() == {"T#demo#SES#ses_1 HEAD": {"to": {"S": "2026-11-24T10:00:00Z"}, "count": {"N": "1"}, "parts": parts}}


def test_a_mark_is_removed_when_the_object_is_found(s3: "S3Client") -> None:
    expire(s3, KEYS[1])
    assert make().run() == 1
    s3.put_object(Bucket="objects", Key=KEYS[1], Body=b"{}")  # from a backup
    assert make().run() == 0
    assert marks() == {}


def test_an_interrupted_restore_continues(
    s3: "S3Client", capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_back = ObjectVersions.bring_back
    lose = iter([EndpointConnectionError(endpoint_url="s3")])

    def fail_once(objects: ObjectVersions, folder: str, keys: Sequence[str]) -> Any:
        bring_back(objects, folder, list(keys)[:1])
        for error in lose:
            raise error
        return bring_back(objects, folder, keys)

    monkeypatch.setattr(ObjectVersions, "bring_back", fail_once)
    with pytest.raises(EndpointConnectionError):
        make().run()
    restore = make()
    assert f"The table {TARGET} exists, so this continues or repeats" in restore.describe("111122223333", "eu-central-1")
    assert restore.run() == 0
    assert "1 right, 1 brought back" in capsys.readouterr().out


def test_a_table_that_the_gateway_uses_already_is_not_written(s3: "S3Client", capsys: pytest.CaptureFixture[str]) -> None:
    expire(s3, KEYS[1])
    make().recovery.start("used", TARGET, AT)
    restore = make(Storage(TARGET, "objects", "objects"))
    assert "uses the table spass-prod-20261124T100000Z already, so nothing is written" in restore.describe("1", "eu")
    assert restore.run() == 1
    assert marks() == {}
    output = capsys.readouterr().out
    assert "1 brought back" in output
    assert "restored:" not in output


def test_a_partition_that_goes_while_it_is_read_is_passed_over(s3: "S3Client", monkeypatch: pytest.MonkeyPatch) -> None:
    expired = {**SESSION, "sk": {"S": "TURN#0000000009"}, "next_seq": {"N": "11"}}
    recovery = CopiedTable(boto3.client("dynamodb"), "used", AT, [expired])
    monkeypatch.setattr(RestoredTable, "query", lambda *_: ())
    assert make(recovery=recovery).run() == 0


def test_another_table_of_the_name_is_refused_and_stays(s3: "S3Client") -> None:
    create_table(boto3.client("dynamodb"), TARGET)
    recovery = CopiedTable(boto3.client("dynamodb"), "elsewhere", AT, ITEMS)
    with pytest.raises(RestoreRefused, match=f"The table {TARGET} exists and is not used as of this time"):
        make(recovery=recovery).run()
    assert boto3.client("dynamodb").scan(TableName=TARGET)["Items"] == []
    assert s3.list_object_versions(Bucket="objects").get("Versions", [])[0]["IsLatest"] is False


@pytest.mark.parametrize("hour", [9, 13], ids=["before the window", "in the future"])
def test_a_time_outside_of_the_window_is_refused_with_the_window(monkeypatch: pytest.MonkeyPatch, hour: int) -> None:
    window = Window(datetime(2026, 11, 24, 10, tzinfo=UTC), datetime(2026, 11, 24, 12, tzinfo=UTC))
    monkeypatch.setattr(CopiedTable, "window", lambda *_: window)
    at = AT.replace(hour=hour)
    restore = Restore("prod", STORAGE, make().recovery, ObjectVersions(boto3.client("s3"), "objects", at))
    with pytest.raises(RestoreRefused, match="from 2026-11-24T10:00:00Z to 2026-11-24T12:00:00Z, but not to 2026-11-24T"):
        restore.describe("111122223333", "eu-central-1")
    assert boto3.client("dynamodb").list_tables()["TableNames"] == ["used"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("yesterday", "'yesterday' is not a time. Write it as"), ("2026-11-24T10:00:00", "has no zone. Add Z or")],
)
def test_a_time_must_be_one_with_its_zone(capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    with pytest.raises(SystemExit):
        operate.main(["restore", "--env", "prod", "--to", text])
    assert said in capsys.readouterr().err


def run_command(folder: Path, *more: str, to: str = "2026-11-24T11:00:00.5+01:00", account: str = "unknown-account") -> int:
    """Run the command on an assembly of prod, and return its exit code."""
    Built(account=account).write(folder)
    return operate.main(["restore", "--env", "prod", "--to", to, "--assembly", str(folder), *more])


@pytest.fixture
def deployed(s3: "S3Client", monkeypatch: pytest.MonkeyPatch) -> None:
    """Deploy prod, with a recovery that knows 10 o'clock."""
    monkeypatch.setattr(command, "read_storage", lambda *_: STORAGE)
    monkeypatch.setattr(command, "TableRecovery", lambda client: CopiedTable(client, "used", AT, ITEMS))


def test_account_region_and_environment_are_named_before_the_question(
    deployed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run_command(tmp_path) == 1
    output = capsys.readouterr().out
    assert output.startswith("Restore of prod in eu-central-1, account 123456789012, to 2026-11-24T10:00:00Z:\n")
    assert f"The table used is restored as of 2026-11-24T10:00:00Z to the new table {TARGET}, and is not changed." in output
    assert output.endswith("Nothing was changed. Answer y, or use --yes.\n")
    assert boto3.client("dynamodb").list_tables()["TableNames"] == ["used"]
    assert run_command(tmp_path, "--yes") == 0
    assert boto3.client("dynamodb").list_tables()["TableNames"] == ["used", TARGET]


def test_credentials_of_another_account_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(tmp_path, "--yes", account="999988887777") == 1
    assert "The credentials are of account 123456789012, but prod belongs to 999988887777." in capsys.readouterr().out


def test_an_environment_that_is_not_deployed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Storage:
        raise NotDeployed("There is no stack Spass-prod-Data.")

    monkeypatch.setattr(command, "read_storage", refuse)
    assert run_command(tmp_path, "--yes") == 1
    assert capsys.readouterr().out == "There is no stack Spass-prod-Data.\n"


def test_an_account_that_does_not_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(error: Exception) -> object:
        def call(*_: object) -> Account:
            raise error

        return call

    monkeypatch.setattr(command, "read_storage", refuse(EndpointConnectionError(endpoint_url="https://cloudformation")))
    assert run_command(tmp_path) == 1
    assert "AWS refused a call or did not answer it. Repeat the command to continue." in capsys.readouterr().out
    monkeypatch.setattr(Account, "of_region", refuse(AccountUnreadable("There are no credentials.")))
    assert run_command(tmp_path) == 1
    assert capsys.readouterr().out == "There are no credentials.\n"
