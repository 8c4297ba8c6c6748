"""What a client prefers (RFC 7240)."""

import pytest
from starlette.datastructures import Headers

from spass.web.prefer import RESPOND_ASYNC, prefers


@pytest.mark.parametrize(
    "sent",
    [
        ["respond-async"],
        ["Respond-Async"],
        ["wait=10, respond-async"],
        ["wait=10,respond-async ; because=slow"],
        ["handling=lenient", "respond-async"],
        ['return="a, b", respond-async'],
        ['respond-async=""'],
        [", ,respond-async"],
    ],
)
def test_a_preference_is_found_wherever_it_stands(sent: list[str]) -> None:
    assert prefers(Headers(raw=[(b"prefer", value.encode()) for value in sent]), RESPOND_ASYNC)


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [""],
        ["respond-asynchronously"],
        ["wait=respond-async"],
        ['return="a, respond-async, b"'],
        ['return="\\", respond-async"'],
        ["handling=lenient; respond-async"],
    ],
)
def test_what_only_looks_like_it_is_none(sent: list[str]) -> None:
    assert not prefers(Headers(raw=[(b"prefer", value.encode()) for value in sent]), RESPOND_ASYNC)
