"""The parameters of a kind, as requests and lists see them, follow from the fields of its dataclass."""

from dataclasses import dataclass, field
from typing import Literal

import pytest
from pydantic import ValidationError

from spass.agents.kinds import AgentContext, BaseAgent, parameter
from spass.agents.parameters import describe, parameters_of, params_model, params_schema
from spass.core.effects import Answer, Infer, Steps


@dataclass(frozen=True, kw_only=True)
class Searcher(BaseAgent):
    goal: str
    words: tuple[str, ...] = field(default_factory=lambda: ("a", "b"))
    depth: Literal[1, 2] = parameter(1, "How far to search.")
    limit: int | None = parameter(None, "Results, at most.", ge=1)

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer(self.opening(input, context))
        return Answer(reply.content)


@dataclass(frozen=True, kw_only=True)
class Deeper(Searcher):
    """Search further.

    The second line is for programmers.
    """

    temperature: float = parameter(0.1, "Sampling temperature.", ge=0, le=1)


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(ValidationError, match="goal"):
        params_model(Searcher).model_validate({})
    assert params_schema(Searcher)["required"] == ["goal"]


def test_a_list_becomes_a_tuple_and_a_default_factory_is_called() -> None:
    given = params_model(Searcher).model_validate({"goal": "x", "words": ["c"]})
    assert (given.model_dump()["words"], given.model_fields_set) == (("c",), {"goal", "words"})
    assert params_model(Searcher).model_validate({"goal": "x"}).model_dump()["words"] == ("a", "b")


@pytest.mark.parametrize(
    "values", [{"goal": 3}, {"words": "ab"}, {"words": [1]}, {"depth": 3}, {"depth": "1"}, {"limit": 0}, {"limit": 1.5}]
)
def test_values_of_another_type_or_out_of_bounds_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        params_model(Searcher).model_validate({"goal": "x", **values})


def test_a_subclass_may_change_a_default_and_its_bounds() -> None:
    properties = params_model(Deeper).model_json_schema()["properties"]
    assert {key: properties["temperature"][key] for key in ("default", "minimum", "maximum")} == {
        "default": 0.1,
        "minimum": 0,
        "maximum": 1,
    }
    assert parameters_of(Deeper(goal="x"))["temperature"] == 0.1


def test_the_description_is_the_first_line_of_the_docstring_if_there_is_one() -> None:
    assert describe(Deeper) == "Search further."
    assert describe(Searcher) == ""
