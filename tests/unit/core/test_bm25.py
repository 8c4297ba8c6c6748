"""Words match without case and accents, rare words weigh more than common ones, and an excerpt contains them."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.bm25 import Ranking, excerpt, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The Offer, no. 4711-B!", ["the", "offer", "no", "4711", "b"]),
        ("Müller, MÜLLER, Mu\u0308ller", ["muller"] * 3),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("Café naïve Ærøskøbing Łódź", ["cafe", "naive", "ærøskøbing", "łodz"]),
        ("ﬁnal ① ㎒ ２０２６", ["final", "1", "mhz", "2026"]),
        ("Ελλάδα Ελλαδα", ["ελλαδα", "ελλαδα"]),
        ("Йод", ["иод"]),
        ("order_id=77; naïve", ["order", "id", "77", "naive"]),
        ("会議は3月", ["会", "議", "は", "3", "月"]),
        ("हिन्दी में बात", ["हिन्दी", "में", "बात"]),
        ("বাংলা ভাষা, தமிழ்", ["বাংলা", "ভাষা", "தமிழ்"]),
        ("שָׁלוֹם שלום", ["שלום"] * 2),
        ("مُحَمَّد محمد", ["محمد"] * 2),
        ("", []),
        ("…!? —", []),
    ],
)
def test_words_are_folded(text: str, found: list[str]) -> None:
    assert words(text) == found


@given(st.text(max_size=40))
def test_folding_twice_changes_nothing(text: str) -> None:
    folded = words(text)
    assert words(" ".join(folded)) == folded


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=40))
def test_ascii_text_has_the_same_words_next_to_other_scripts(text: str) -> None:
    assert words(f"{text} ü") == [*words(text), "u"]


def rank(query: str, *texts: str) -> list[str]:
    """Return the texts that match the query, best first."""
    ranking = Ranking[str](query)
    for text in texts:
        ranking.add(text, text)
    return [text for text, _ in sorted(ranking.scored(), key=lambda one: -one.score)]


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    assert rank("the kraken", "the the the the", "the sea", "the kraken")[0] == "the kraken"
    assert rank("the kraken", "the the the", "a kraken", "the sea", "the end")[0] == "a kraken"


def test_the_shorter_of_two_texts_with_the_word_has_the_higher_score() -> None:
    assert rank("berlin", "berlin is one of many words here", "berlin is") == ["berlin is", "berlin is one of many words here"]


def test_a_text_without_a_word_of_the_query_is_not_found() -> None:
    assert rank("kraken", "the sea", "") == []
    assert rank("?!", "?!") == []


def test_scores_are_those_of_the_published_formula() -> None:
    ranking = Ranking[int]("alpha beta")
    for number, text in enumerate(["alpha alpha gamma", "beta", "gamma gamma gamma gamma"]):
        ranking.add(number, text)
    rare = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    average = 8 / 3
    first = rare * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / average))
    second = rare * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 1 / average))
    assert ranking.scored() == [(0, round(first, 6)), (1, round(second, 6))]


def test_an_excerpt_is_the_passage_with_most_words_of_the_query() -> None:
    text = "alpha " + "x " * 500 + "the ALPHA and the Béta " + "y " * 500 + "beta"
    shown = excerpt(text, {"alpha": 1.0, "beta": 1.0}, 100)
    assert "ALPHA and the Béta" in shown
    assert len(shown) == 100
    assert (shown[0], shown[-1]) == ("…", "…")


def test_an_excerpt_prefers_the_heavier_word() -> None:
    text = "the " * 50 + "x " * 200 + "kraken"
    assert excerpt(text, {"the": 0.1, "kraken": 2.0}, 60).endswith("kraken")


@given(
    before=st.text(max_size=300),
    after=st.text(max_size=300),
    length=st.integers(20, 120),
    word=st.sampled_from(["zebra", "Zébra"]),
)
def test_an_excerpt_contains_the_word_and_has_at_most_the_requested_length(
    before: str, after: str, length: int, word: str
) -> None:
    text = f"{before} {word} {after}"
    shown = excerpt(text, {"zebra": 1.0}, length)
    assert len(shown) <= length
    assert "zebra" in words(shown)
    assert shown.strip("…") in text or "…" in before + after
    assert len(text) > length or shown == text


def test_a_word_longer_than_an_excerpt_does_not_make_it_longer() -> None:
    assert len(excerpt("y " * 100 + "x" * 5000, {"x" * 5000: 1.0}, 100)) <= 100


@pytest.mark.parametrize("query", ["Preis Kraken 1234", " ".join(f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh")])
@pytest.mark.parametrize(
    "text",
    ["Größe und Preis der 1234 Teile, sowie the usual words. " * 5_000, "ab cd ef gh ba " * 20_000, "a" * 300_000, "ü" * 300_000],
    ids=["words", "only hits", "one word", "one foreign word"],
)
def test_megabytes_are_searched_in_seconds(query: str, text: str) -> None:
    ranking = Ranking[int](query)
    start = time.process_time()
    for number in range(3):
        ranking.add(number, text)
    ranking.scored()
    excerpt(text, ranking.weights(), 1000)
    assert time.process_time() - start < 5, f"{3 * len(text)} characters"
