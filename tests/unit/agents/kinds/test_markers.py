"""The show filter shows the same text however a reply is cut into pieces, and never takes text back."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spass.agents.kinds.markers import Scanner, ShowFilter, shown_text
from spass.core.effects import HIDDEN, TextVisibility, VisibleAfter

ANSWER = VisibleAfter(("Final Answer:",), ("Observation:",))
SHOWS: tuple[TextVisibility, ...] = (
    ANSWER,
    VisibleAfter(("FINAL_ANSWER:", "Answer:"), ("Observation:", "```python")),
    VisibleAfter((), ("```python", "Action:")),
    VisibleAfter(("Result:",)),
    HIDDEN,
    None,
)
MARKERS = """Final Answer:|final_answer :|FINAL ANSWER|**Final Answer:**|**Final Answer**:|*Final Answer: x*|### Answer:|Answer:\
|Observation:|obser|vation:|```|```python|```py|~~~|Action:|Result:"""
SIGNS = "\n|\n|\r\n| |\t|   |x|16|`|*|**|_|#|# |:|：|é|\u2028"
PARTS = (*MARKERS.split("|"), *SIGNS.split("|"))
REPLIES = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=14).map("".join)


def show_in_pieces(pieces: list[str], show: TextVisibility) -> list[str]:
    show_filter = ShowFilter(show)
    return [*map(show_filter.feed, pieces), show_filter.flush()]


def cut(text: str, places: list[int]) -> list[str]:
    borders = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(borders)]


@given(REPLIES, st.lists(st.integers(0, 400), max_size=8), st.sampled_from(SHOWS))
@example("**Final Answer:** 16", [2, 15, 16], ANSWER)
def test_the_borders_of_pieces_do_not_change_the_shown_text(reply: str, places: list[int], show: TextVisibility) -> None:
    whole = shown_text(reply, show) or ""
    assert "".join(show_in_pieces(cut(reply, places), show)) == whole
    assert "".join(show_in_pieces(list(reply), show)) == whole


@given(REPLIES, st.sampled_from(SHOWS))
def test_the_shown_text_occurs_in_the_reply_apart_from_its_emphasis(reply: str, show: TextVisibility) -> None:
    shown = shown_text(reply, show)
    assert shown is None or shown.lstrip("*_") in reply
    if isinstance(show, VisibleAfter) and shown is not None:
        assert shown == shown.strip()


@given(REPLIES, st.sampled_from([show for show in SHOWS if isinstance(show, VisibleAfter)]))
def test_the_scanner_loses_no_text(reply: str, show: VisibleAfter) -> None:
    scanner = Scanner((*show.markers, *show.until))
    pieces = [*scanner.feed(reply), *scanner.flush()]
    assert "".join(piece if isinstance(piece, str) else piece.text for piece in pieces) == reply


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("Thought: easy\nFinal Answer: 16", "16"),
        ("final answer:16 \n\n", "16"),
        ("FINAL ANSWER : a\n\nb\nThought: c", "a\n\nb\nThought: c"),
        ("Final_Answer: 16", "16"),
        (" \t final  answer：16", "16"),
        ("**Final Answer:** 16", "16"),
        ("**Final Answer**: 16", "16"),
        ("**Final Answer:**\n**16**", "**16**"),
        ("**Final Answer: 16**", "**16**"),
        ("### Final Answer:\n16", "16"),
        ("Final Answer: Final Answer: 3\nFinal Answer: 4", "Final Answer: 3\nFinal Answer: 4"),
        ("Final Answer: 16\nOBSERVATION: 17\nFinal Answer: 17", "16"),
        ("Final Answer: 16\n**Observation:** 17", "16"),
        ("Final Answer: the key Observation: none", "the key Observation: none"),
        ("Final Answer:", ""),
        ("Final Answer:\nObservation: 1", ""),
        ("Observation: 1\nFinal Answer: 2", None),
        ("I know the Final Answer: 3", None),
        ("- Final Answer: 3", None),
        ("Final Answer", None),
        ("", None),
    ],
)
def test_the_final_answer_is_what_follows_its_marker(reply: str, shown: str | None) -> None:
    assert shown_text(reply, ANSWER) == shown


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("```\nFinal Answer: 16\n```", "16"),
        ("```text\nThought: x\n  Final Answer: 16\n```  \n", "16"),
        ("~~~\nFinal Answer: 16\n~~~\nObservation: 17", "16"),
        ("```\nFinal Answer: 16\n```\nThat is all.", "16\n```\nThat is all."),
        ("```\nFinal Answer: run\n```py\nx\n```\n```", "run\n```py\nx\n```"),
        ("```\nFinal Answer: run\n```py\nx\n```", "run\n```py\nx\n```"),
        ("Final Answer: run\n```\nx\n```", "run\n```\nx\n```"),
        ("```\nx\n```\nFinal Answer: run\n```\ny\n```", "run\n```\ny\n```"),
        ("Action Input: ```json\n{}\n```\nFinal Answer: run\n```\ny\n```", "run\n```\ny\n```"),
    ],
)
def test_the_end_of_a_fence_around_the_answer_is_not_part_of_it(reply: str, shown: str) -> None:
    assert shown_text(reply, ANSWER) == shown


def test_text_is_shown_as_it_arrives() -> None:
    show_filter = ShowFilter(ANSWER)
    pieces = [
        "Thought: I",
        " add\nFinal",
        " Answer:",
        " The",
        " sum ",
        "is",
        " 4.\n",
        "Ob",
        "jects",
        "\nObservation",
        ": 5",
        "\nno",
    ]
    assert [show_filter.feed(piece) for piece in pieces] == [
        "", "", "", "The", " sum", " is", " 4.", "", "\nObjects", "", "", "",
    ]  # fmt: skip
    assert show_filter.flush() == ""


def test_all_text_is_shown_unchanged_without_a_filter() -> None:
    assert show_in_pieces([" a\n", "Observation: b ", "\n"], None) == [" a\n", "Observation: b ", "\n", ""]
    assert show_in_pieces([" a\n", "b"], HIDDEN) == ["", "", ""]


def test_text_from_the_start_is_shown_up_to_code() -> None:
    show = VisibleAfter((), ("```python",))
    assert show_in_pieces(["Let me see.\n", "``", "`py", "thon\nprint(1)\n```"], show) == ["Let me see.", "", "", "", ""]
    assert shown_text("See:\n```js\n1\n```", show) == "See:\n```js\n1\n```"


@pytest.mark.parametrize(
    "reply",
    [
        "Final Answer:" + " " * 200_000,
        "Final Answer: x" + "\n" * 200_000,
        " " * 200_000,
        "```\nFinal Answer: x\n" + "`" * 200_000,
        ("```\n" * 50_000) + "Final Answer: x\n" + "```\n" * 50_000,
        "final " * 40_000,
        "final_" * 40_000,
        ("*" * 200_000) + "#" * 1000,
    ],
)
def test_hostile_replies_take_linear_time_in_small_pieces(reply: str) -> None:
    begin = time.process_time()
    show_in_pieces(list(reply), ANSWER)
    assert time.process_time() - begin < 3
