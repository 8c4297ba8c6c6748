"""A fact counts as known where it is said, not where its answer happens to stand."""

import random

import pytest

from bench.planted_facts import PROJECTS, Fact, facts_of

FACTS = facts_of("Kestrel", random.Random(1))


@pytest.mark.parametrize("fact", FACTS, ids=[fact.question for fact in FACTS])
def test_what_was_said_makes_a_fact_known(fact: Fact) -> None:
    assert fact.known_by(f"Something else. {fact.said} And more.")
    assert fact.known_by(f"…{fact.said[4:]}")


def test_the_same_answer_to_another_question_makes_none_known() -> None:
    others = [fact for project in PROJECTS if project != "Kestrel" for fact in facts_of(project, random.Random(1))]
    text = " ".join(fact.said for fact in others)
    assert {fact.key for fact in FACTS} <= {fact.key for fact in others}
    assert [fact for fact in FACTS if fact.known_by(text)] == []
    for fact in FACTS:
        beside = " ".join(other.said for other in FACTS if other is not fact)
        assert not fact.known_by(f"{beside} Somebody spoke of {fact.key}.")
