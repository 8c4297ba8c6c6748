"""The hybrid retrieval by hand: how many notes it searches, and in which order a model grades what both searches found."""

import json
from random import Random

from spass.agents.kinds import AgentContext
from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.core.effects import AssistantReply, Effect, Infer, Note, Recalled, SearchNotes, Steps

RANK_CONSTANT = 60
"""Source: Cormack et al., Reciprocal Rank Fusion outperforms Condorcet, SIGIR 2009."""
NAMES = [f"n{number}" for number in range(14)]


class ByHand:
    """A run whose searches find ``by_words`` and ``by_meaning``, up to its first model call."""

    def __init__(self, by_words: list[str], by_meaning: list[str]) -> None:
        self.found = {"keyword": by_words, "semantic": by_meaning}
        self.limits: dict[str, int] = {}
        self.steps: Steps = MonitorOperativeAgent().steps("the leak", AgentContext())
        self.effect: Effect = next(self.steps)
        self._answer_searches()

    def _answer_searches(self) -> None:
        while isinstance(self.effect, SearchNotes):
            effect = self.effect
            names = self.found.get(effect.by, [])[: effect.limit]
            if effect.by in self.found:
                assert effect.query == "the leak"
                self.limits[effect.by] = effect.limit
            self.effect = self.steps.send(Recalled(tuple(Note(name, f"{name} leaks") for name in names)))

    @property
    def graded(self) -> list[str]:
        """Return the names of the notes that a model is to grade, in their order."""
        assert isinstance(self.effect, Infer)
        assert self.effect.aside
        return [json.loads(line)["content"].split()[0] for line in self.effect.messages[-1].content.split("\n")]

    def grade(self, reply: str) -> list[str]:
        """Return the names of the notes in the agent's own first model call."""
        effect: Effect = self.steps.send(AssistantReply(reply))
        while not isinstance(effect, Infer) or effect.aside:
            effect = self.steps.send(Recalled() if isinstance(effect, SearchNotes) else None)
        texts = [message.content for message in effect.messages if message.heading.startswith("## Notes")]
        return [json.loads(line)["key"] for text in texts for line in text.split("\n")]


def reciprocal_rank(name: str, *rankings: list[str]) -> float:
    """Return the sum of 1 / (60 + rank), ranks counted from 1."""
    return sum(1 / (RANK_CONSTANT + ranking.index(name) + 1) for ranking in rankings if name in ranking)


def test_ten_notes_of_each_search_are_graded_in_the_order_of_their_reciprocal_ranks() -> None:
    random = Random(17)
    for _ in range(100):
        by_words, by_meaning = (random.sample(NAMES, random.randint(1, len(NAMES))) for _ in range(2))
        run = ByHand(by_words, by_meaning)
        assert run.limits == {"keyword": 10, "semantic": 10}
        rankings = by_words[:10], by_meaning[:10]
        scores = [reciprocal_rank(name, *rankings) for name in run.graded]
        assert sorted(run.graded) == sorted({*rankings[0], *rankings[1]})
        assert scores == sorted(scores, reverse=True)


def test_the_notes_keep_this_order_in_the_prompt_of_the_agent() -> None:
    by_words, by_meaning = NAMES[:10], NAMES[4:14]
    grades = {str(number): 2 + number % 2 for number in range(1, 15) if number != 3}
    run = ByHand(by_words, by_meaning)
    expected = [name for number, name in enumerate(run.graded, 1) if number != 3]
    assert run.grade(json.dumps({"grades": grades})) == expected
    run = ByHand(by_words, by_meaning)
    assert run.grade("I cannot grade them.") == run.graded[:8]
