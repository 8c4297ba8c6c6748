"""Test that subjects name every object and every missing item. The history is written by the gateway's own routes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from operate.references import Subject
from spass.core.ids import IndexId, TenantId
from spass.core.time import now_s
from spass.rag.index.manifest import CODED, Manifest, Segment, swap_write
from spass.store.writes import Update
from spass.testing.aws import MemoryAws
from tests.drill.history import History
from tests.unit.operate.memory_items import MemoryItems


async def write_history(aws: MemoryAws, folder: Path) -> None:
    async with History.over(aws, folder) as history:
        await write(history)


async def write(history: History) -> None:
    session = await history.session(long=True)
    await history.call("POST", f"{session}/messages", json={"message": "Write much."}, headers={"Idempotency-Key": "once"})
    await history.call("DELETE", await history.session(long=True))
    await history.workspace("kept")
    await history.agent()
    await history.index("books")
    await history.index("books")  # the objects of the first life are garbage


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> MemoryAws:
    aws = MemoryAws()
    asyncio.run(write_history(aws, tmp_path_factory.mktemp("history")))
    return aws


@pytest.fixture
def items(aws: MemoryAws) -> MemoryItems:
    return MemoryItems(list(aws.table.items()))


def lost(subject: Subject) -> set[str]:
    return set(subject.missing)


def test_every_object_of_the_gateway_is_named_by_its_items(aws: MemoryAws, items: MemoryItems) -> None:
    named = [key for subject in items.subjects() for key in subject.objects]
    manifest = next(item for item in items.items if item["sk"] == "IDX#books")
    garbage = {key for key in aws.bucket.keys if any(part in key for part in str(manifest["retired"]).split('"'))}
    assert len(named) == len(set(named))
    assert set(named) - set(aws.bucket.keys) == set()
    assert {key for key in aws.bucket.keys if key not in named} <= garbage
    assert {key.split("/")[2] for key in named} == {"sessions", "rag", "ws", "managed", "idempotency"}
    assert all(key.startswith(subject.folder) for subject in items.subjects() for key in subject.objects)


def test_nothing_is_missing_in_a_whole_history(items: MemoryItems) -> None:
    assert {subject.name: subject.missing for subject in items.subjects() if subject.missing} == {}


def test_no_subject_of_a_user_says_who_the_user_is(items: MemoryItems) -> None:
    said = [(subject.name, *subject.objects.values(), *subject.missing) for subject in items.subjects()]
    assert "ada" not in str(said)


@pytest.mark.parametrize(
    ("sort_key", "missing"),
    [
        ("TURN#0000000001", {"messages 1 to 2"}),
        ("TURN#0000000003", {"messages 3 to 4"}),
        ("TURN#0000000007", {"messages 7 to 8"}),
        ("HEAD", {"the head"}),
    ],
)
def test_the_missing_item_of_a_session_is_named(items: MemoryItems, sort_key: str, missing: set[str]) -> None:
    head = next(item for item in items.items if "#SES#" in item["pk"] and item["sk"] == "HEAD" and "deleted_at" not in item)
    items.items = [item for item in items.items if (item["pk"], item["sk"]) != (head["pk"], sort_key)]
    found = items.subject(str(head["pk"]).rpartition("#")[2])
    assert lost(found) == missing
    assert (found.head is None) == (sort_key == "HEAD")


def test_a_session_without_the_record_of_its_summary_names_it(items: MemoryItems) -> None:
    head = next(item for item in items.items if "#SES#" in item["pk"] and item["sk"] == "HEAD" and "deleted_at" not in item)
    head["summary_id"] = "sum_1"
    assert lost(items.subject(str(head["pk"]).rpartition("#")[2])) == {"the record of the summary that it begins with"}


def test_the_missing_versions_of_a_workspace_are_named(items: MemoryItems) -> None:
    items.items = [item for item in items.items if item["sk"] != "V#0000000002"]
    assert lost(items.subject("workspace demo/kept")) == {"version 2"}
    items.items = [item for item in items.items if not str(item["sk"]).startswith("V#")]
    assert lost(items.subject("workspace demo/kept")) == {"all versions"}


def test_a_workspace_whose_head_is_missing_is_named_with_its_objects(items: MemoryItems) -> None:
    items.items = [item for item in items.items if item["sk"] != "WS#kept"]
    found = items.subject("workspace demo/kept")
    assert (lost(found), found.head) == ({"the head"}, None)
    assert {name.partition(" ")[0] for name in found.objects.values()} == {"tree", "pack"}


def test_the_versions_of_a_deleted_generation_are_no_subject(items: MemoryItems) -> None:
    for item in items.items:
        if item["sk"] == "WS#kept":
            item["generation"] = ""
    assert [subject.name for subject in items.subjects() if subject.kind == "workspace"] == []


@pytest.mark.parametrize(("kind", "partition", "head"), [("managed agent", "#MAGENT#", "AGENT"), ("session", "#SES#", "HEAD")])
def test_what_is_being_deleted_is_no_subject(items: MemoryItems, kind: str, partition: str, head: str) -> None:
    assert kind in {subject.kind for subject in items.subjects()}
    for item in items.items:
        if partition in item["pk"] and item["sk"] == head:
            item["deleted_at"] = "2026-11-24T10:00:00.000Z"
    assert kind not in {subject.kind for subject in items.subjects()}


def test_a_manifest_that_cannot_be_read_is_named(items: MemoryItems) -> None:
    for item in items.items:
        if item["sk"] == "IDX#books":
            item["segments"] = "[{"
    assert lost(items.subject("index demo/books")) == {"the manifest cannot be read"}


def test_the_codes_and_the_bitmap_of_a_segment_are_needed_too() -> None:
    segment = Segment("s", 10_000, 1, 1, deleted_rows=9_000, bitmap_object="dead-1", format=CODED)
    manifest = Manifest("g", 1, "m", 384, segments=(segment,), revision=1)
    write = swap_write(TenantId("t"), IndexId("i"), Manifest(), manifest)
    assert isinstance(write, Update)
    subject = MemoryItems([{"pk": write.key.pk, "sk": write.key.sk, **write.set}]).subject("index t/i")
    assert {key.removeprefix("T/t/rag/i/g/s/") for key in subject.objects} == {
        *("vectors.npy", "ids", "meta", "docs.jsonl", "offsets.npy", "codes", "dead-1")
    }


UPLOAD = {"pk": "T#t#UPLOAD#i", "sk": "UP#u", "key": "i/u/a.md", "version": "v7"}


@pytest.mark.parametrize(
    ("state", "is_needed"),
    [({"status": "queued"}, True), ({"status": "failed", "stopped": "x"}, True), ({"status": "succeeded"}, False)],
)
def test_an_upload_needs_the_version_of_its_file_until_it_ends(state: dict[str, Any], is_needed: bool) -> None:
    subjects = list(MemoryItems([UPLOAD | state]).subjects())
    assert [list(subject.uploaded) for subject in subjects] == ([[("uploads/t/i/u/a.md", "v7")]] if is_needed else [])


@pytest.mark.parametrize(("ttl", "expected"), [(10, []), (2**40, ["approval t/apr_1"])])
def test_the_call_of_a_large_approval_is_needed_until_it_expires(ttl: int, expected: list[str]) -> None:
    head = {"pk": "T#t#SES#s", "sk": "HEAD", "next_seq": 1}
    approval = {"pk": "T#t#SES#s", "sk": "APR#apr_1", "is_large": True, "ttl": ttl}
    subjects = list(MemoryItems([head, approval]).subjects(now_s()))
    assert [subject.name for subject in subjects if subject.kind == "approval"] == expected
    assert all(list(subject.objects) == ["T/t/apr/apr_1"] for subject in subjects if subject.kind == "approval")
