"""Stop or kill the gateway during an ingest. These tests wait long, so ``tests/conftest.py`` starts them first."""

import json
import signal
import time
from collections.abc import Callable

from tests.e2e.conftest import Gateway
from tests.e2e.upload_client import documents, put, upload, wait_for_upload


def _large(good: int) -> bytes:
    """Return a file of several parts. Most lines are refused, which is fast; ``good`` lines are documents."""
    refused = json.dumps({"id": "refused", "text": "x" * 9000, "metadata": {}}) + "\n"
    lines = [json.dumps({"id": f"d{number}", "text": f"Dokument {number}", "metadata": {}}) + "\n" for number in range(good)]
    content = "".join(line + refused * (1 + 18 * 2**20 // len(refused) // good) for line in lines).encode()
    assert len(content) > 16 * 2**20, "the file must have several parts"
    return content


def test_a_large_file_continues_after_ctrl_c_without_duplicates(new_gateway: Callable[[], Gateway]) -> None:
    good = 600
    first = new_gateway()
    first.start()
    with first.client() as client:
        upload_id, _ = put(client, "large", "large.jsonl", _large(good))
        before = upload(client, "large", upload_id, lambda state: bool(state["bytes_done"]))
        assert before["status"] == "running"
    stopping = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - stopping < 10

    second = new_gateway()
    second.start()
    with second.client() as client:
        after = upload(client, "large", upload_id, wait_for_upload)
        assert (after["status"], after["documents_ingested"]) == ("succeeded", good)
        assert after["bytes_done"] == after["bytes_total"]
        assert sorted(documents(client, "large")) == sorted(f"d{number}" for number in range(good))
        index = client.get("/a1/rag/indices/large").json()
        assert index["doc_count"] == good
    assert "worker_failed" not in second.output


def test_a_small_file_continues_after_the_gateway_was_killed(new_gateway: Callable[[], Gateway]) -> None:
    good = 800
    content = "".join(json.dumps({"id": f"d{n}", "text": f"Dokument {n}", "metadata": {}}) + "\n" for n in range(good)).encode()
    first = new_gateway()
    first.start()
    with first.client() as client:
        upload_id, _ = put(client, "small", "small.jsonl", content)
        upload(client, "small", upload_id, lambda state: bool(state["bytes_done"]))
    first.stop(signal.SIGKILL)

    second = new_gateway()
    second.start()
    with second.client() as client:
        after = upload(client, "small", upload_id, wait_for_upload)
        assert (after["status"], after["documents_ingested"]) == ("succeeded", good)
        assert client.get("/a1/rag/indices/small").json()["doc_count"] == good
