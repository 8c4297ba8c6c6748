"""Think text is removed from a model's text, and the result does not depend on where the text is cut."""

import re
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spass.core.think_filter import ThinkFilter

TAGS = ["<think>", "</think>", "<THINK>", "</Think>"]
FRAGMENTS = [*TAGS, "<", "</", "<thi", "</th", "nk>", "ink>", "think>", ">", "a", "b c", " ", "\n", "\r\n"]

texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


def shown(pieces: Sequence[str], *, begins_thinking: bool = False) -> str:
    think = ThinkFilter(begins_thinking=begins_thinking)
    return "".join([*map(think.feed, pieces), think.flush()])


def reference(text: str, *, begins_thinking: bool) -> str:
    """Remove think text from a whole text, as the module's docstring describes it. Blocks are NUL characters at first."""
    text = without_blocks(text, begins_thinking=begins_thinking)
    text = re.sub(r"(?:\A[ \t\r\n]*|(?<=\n))\0[ \t\r\n\0]*(?P<more>.?)", after_block, text, flags=re.DOTALL).replace("\0", "")
    while re.search("</?think>", text, re.IGNORECASE):
        text = re.sub("</?think>", "", text, flags=re.IGNORECASE)
    return text


def without_blocks(text: str, *, begins_thinking: bool) -> str:
    if begins_thinking:
        parts = re.split("</think>", text, maxsplit=1, flags=re.IGNORECASE)
        return "\0" + without_blocks(parts[1], begins_thinking=False) if parts[1:] else without_tags(text)
    opening = re.search("<think>", text, re.IGNORECASE)
    if opening is None:
        return without_tags(text)
    before, inside = without_tags(text[: opening.start()]), text[opening.end() :]
    depth = 1
    for tag in re.finditer("<(/?)think>", inside, re.IGNORECASE):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return before + "\0" + without_blocks(inside[tag.end() :], begins_thinking=False)
    flat = re.sub("<think>.*?</think>", "\0", text[opening.start() :], flags=re.IGNORECASE | re.DOTALL)
    return before + without_tags(flat)


def without_tags(text: str) -> str:
    return re.sub("</?think>", "", text, flags=re.IGNORECASE)


def after_block(gap: re.Match[str]) -> str:
    if not gap["more"]:
        return ""
    blanks = gap[0][:-1].rpartition("\0")[2]
    return (blanks.rpartition("\n")[2] if "\n" in blanks else "") + gap["more"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Plain text.", "Plain text."),
        ("  \n indented", "  \n indented"),
        (" \n", " \n"),
        ("", ""),
        ("<think>why</think>Because.", "Because."),
        ("<THINK>why</Think>Because.", "Because."),
        ("<think></think>Because.", "Because."),
        ("<think>one</think>A<think>two</think>B", "AB"),
        ("A<think>one</think>", "A"),
        ("<think>only</think>", ""),
    ],
)
def test_think_blocks_are_removed(text: str, answer: str) -> None:
    assert shown([text]) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>The answer is 4.", "The answer is 4."),
        ("Wait.<think>The answer is 4.", "Wait.The answer is 4."),
        ("The answer</think> is 4.", "The answer is 4."),
        ("</think>4", "4"),
        ("<think>a</think></think>4", "4"),
        ("<think><think>", ""),
        ("<think>a</think>4<think>5", "45"),
    ],
)
def test_an_unpaired_tag_is_removed_and_its_text_stays(text: str, answer: str) -> None:
    assert shown([text]) == answer


@pytest.mark.parametrize(
    "text",
    [
        "<thinking>a</thinking>",
        "<think",
        "</think",
        "< think>a</ think>",
        "</thin",
        "<think >",
        "<think/>",
        "a << b",
        "<thin\u212a>",
    ],
)
def test_a_text_that_resembles_a_tag_stays(text: str) -> None:
    assert [shown([text]), shown([*text])] == [text, text]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>I may write <think> first.</think>Answer", "Answer"),
        ("<think>a <think> b</think>One<think>c</think>Two", "OneTwo"),
        ("<think>a<think>b</think>One<think>c", "Onec"),
    ],
)
def test_blocks_nest_where_their_tags_balance(text: str, answer: str) -> None:
    assert shown([text]) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("thoughts</think>Answer", "Answer"),
        ("<think>thoughts</think>Answer", "Answer"),
        ("<think>I write <think> first</think>Answer", "Answer"),
        ("a</think>b<think>c</think>d", "bd"),
        ("a</think>b<think>c<think>d</think>e</think>f", "bf"),
        ("No thoughts at all.", "No thoughts at all."),
        ("<think>No end", "No end"),
        ("a</think>b</think>c", "bc"),
    ],
)
def test_text_before_the_first_closing_tag_is_thought_if_marked(text: str, answer: str) -> None:
    assert shown([text], begins_thinking=True) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think>\n\n Answer", " Answer"),
        ("<think>a</think>\r\n\r\nAnswer\n", "Answer\n"),
        ("<think>a</think> Answer", "Answer"),
        ("\n<think>a</think>\n \n<think>b</think>\n\nAnswer", "Answer"),
        ("<think>a</think>\n\n    indented code", "    indented code"),
        ("<think>a</think>\n\n", ""),
        ("First.\n\n<think>a</think>\n\nSecond.", "First.\n\nSecond."),
        ("First.<think>a</think>\nSecond.", "First.\nSecond."),
        ("two <think>a</think>words", "two words"),
    ],
)
def test_blank_lines_after_a_block_are_removed(text: str, answer: str) -> None:
    assert [shown([text]), shown([*text])] == [answer, answer]


@given(text=texts, cuts=st.lists(st.integers(0, 60)), begins_thinking=st.booleans())
def test_the_result_does_not_depend_on_where_the_text_is_cut(text: str, cuts: list[int], begins_thinking: bool) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    assert shown(pieces, begins_thinking=begins_thinking) == shown([text], begins_thinking=begins_thinking)


@given(text=texts, begins_thinking=st.booleans())
@example(text="<thi<think>secret</think>nk>rest", begins_thinking=False)
@example(text="<thi<thi</think>nk>nk>", begins_thinking=False)
def test_the_result_is_that_of_a_simple_rule_on_the_whole_text(text: str, begins_thinking: bool) -> None:
    result = shown([text], begins_thinking=begins_thinking)
    assert result == reference(text, begins_thinking=begins_thinking)
    assert not re.search("</?think>", result, re.IGNORECASE)


@given(text=texts)
def test_a_text_without_tags_is_unchanged(text: str) -> None:
    plain = text.replace("think", "thank").replace("THINK", "THANK").replace("Think", "Thank").replace("nk>", "nc>")
    assert shown([*plain]) == plain


def test_an_answer_streams_while_it_is_written() -> None:
    think = ThinkFilter()
    assert [think.feed(piece) for piece in ["<thi", "nk>why</t", "hink>", "\n\n", "Be", "cause <", "b>", " it is"]] == [
        "", "", "", "", "Be", "cause ", "<b>", " it is",
    ]  # fmt: skip


def test_a_marked_models_answer_streams_from_the_first_closing_tag() -> None:
    think = ThinkFilter(begins_thinking=True)
    assert [think.feed(piece) for piece in ["why", " not</think>", "Be", "cause"]] == ["", "", "Be", "cause"]


@pytest.mark.parametrize(
    "piece", ["<think>", "<think><think></think>", "<thi", "<think>a</think>", " ", "<", "</think>", "a<", "<think>\n"]
)
def test_hostile_texts_take_linear_time(piece: str) -> None:
    start = time.process_time()
    shown([piece * 20_000] + [piece] * 20_000 + ["</think>"] + ["nk>"] * 20_000)
    assert time.process_time() - start < 3
