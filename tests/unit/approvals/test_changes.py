"""Whether a person has seen all that a call does before it is approved."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from spass.approvals.changes import check_seen
from spass.approvals.record import StoredCall
from spass.core.errors import PreviewNotSeen
from spass.core.messages import Json
from tests.unit.approvals.waiting_calls import WaitingCalls

pytestmark = pytest.mark.anyio
DIFF: Mapping[str, Json] = {"kind": "diff", "path": "src/main.py", "unified": "+x", "truncated": False}
CUT: Mapping[str, Json] = {**DIFF, "truncated": True}


@pytest.mark.parametrize(
    ("preview", "rich"),
    [
        ({"workspace": "default", "files": [DIFF]}, (CUT,)),
        ({"workspace": "default", "files": [DIFF], "omitted": 3}, (DIFF,)),
        ({"note": "The preview is too long to be shown here."}, ()),
    ],
    ids=["a block is cut", "files are missing", "there is only a note"],
)
async def test_what_an_earlier_release_showed_in_part_cannot_be_approved(
    calls: WaitingCalls, preview: Json, rich: Sequence[Json]
) -> None:
    """It did not mark previews as complete, and did not store the whole diffs."""
    approval = replace(await calls.put(), preview=preview, rich=tuple(rich))
    with pytest.raises(PreviewNotSeen, match="an earlier release stored it without the whole preview"):
        check_seen(calls.store, approval, StoredCall({}, {"diffs": [{**CUT}]}), None)


async def test_what_an_earlier_release_showed_whole_is_approved(calls: WaitingCalls) -> None:
    approval = replace(await calls.put(), preview={"workspace": "default", "files": [DIFF]}, rich=(DIFF,))
    check_seen(calls.store, approval, StoredCall({}, {"diffs": [{**DIFF}]}), None)
