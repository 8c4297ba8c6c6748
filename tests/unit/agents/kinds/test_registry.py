"""Test the registry of agent kinds: what the decorator adds, what the keys are, and what is refused."""

from dataclasses import dataclass

import pytest

from spass.agents import kinds
from spass.agents.kinds import KINDS, AgentContext, BaseAgent, ToolUsingAgent, user
from spass.agents.kinds.registry import FILE_KEYS, KindRegistry, UnknownKind
from spass.agents.kinds.simple import SimpleAgent
from spass.agents.spec import AgentFile
from spass.core.effects import Answer, Infer, Steps


@dataclass(frozen=True, kw_only=True)
class Echo(BaseAgent):
    """Repeat what the model says."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer((user(input),))
        return Answer(reply.content)


def registry() -> KindRegistry:
    return KindRegistry(
        {
            "simple": "spass.agents.kinds.simple.SimpleAgent",
            "tools": "spass.agents.kinds.base.ToolUsingAgent",
            "last": "spass.agents.kinds.base.BaseAgent",
        },
        {"t": "tools", "absent": "another"},
    )


def test_the_decorator_adds_a_kind_and_returns_its_class() -> None:
    kinds = registry()
    assert not kinds.contains("echo")
    assert kinds.register("echo")(Echo) is Echo
    assert kinds.contains("echo")
    assert kinds.get("echo") is Echo


def test_keys_are_in_order_with_aliases_after_their_kinds_and_registered_kinds_last() -> None:
    kinds = registry()
    kinds.register("echo")(Echo)
    assert kinds.keys() == ["simple", "tools", "t", "last", "echo"]


def test_an_alias_names_the_same_class_and_has_the_canonical_key() -> None:
    kinds = registry()
    assert kinds.get("t") is kinds.get("tools") is ToolUsingAgent
    assert (kinds.canonical("t"), kinds.canonical("tools")) == ("tools", "tools")


@pytest.mark.parametrize("key", ["simple", "t", "echo"])
def test_a_key_cannot_be_registered_twice(key: str) -> None:
    kinds = registry()
    kinds.register("echo")(Echo)
    with pytest.raises(ValueError, match=f"the kind '{key}' exists already"):
        kinds.register(key)(Echo)
    assert kinds.get("simple") is SimpleAgent


@pytest.mark.parametrize("key", ["", "two words", "a/b", "x" * 65, "key\n", "ü"])
def test_a_key_that_could_not_be_the_name_of_an_agent_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="cannot be the key of a kind"):
        registry().register(key)(Echo)


def test_only_classes_of_agents_can_be_registered() -> None:
    kinds = registry()
    with pytest.raises(TypeError, match="str must extend BaseAgent"):
        kinds.register("text")(str)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="ToolUsingAgent must define steps"):
        kinds.register("text")(ToolUsingAgent)  # type: ignore[type-abstract]
    assert not kinds.contains("text")


def test_a_parameter_cannot_have_the_name_of_another_key_of_a_file() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Chooser(Echo):
        model: str = "a"

    with pytest.raises(ValueError, match="a parameter of the kind 'chooser' cannot be named 'model'"):
        registry().register("chooser")(Chooser)
    assert frozenset(AgentFile.model_fields) == FILE_KEYS


def test_the_error_for_an_unknown_kind_suggests_the_most_similar_key() -> None:
    with pytest.raises(UnknownKind) as caught:
        registry().get("simpel")
    assert str(caught.value) == "there is no agent kind 'simpel'; did you mean 'simple'?"
    assert isinstance(caught.value, KeyError)


def test_every_built_in_kind_has_a_class_with_a_description() -> None:
    for key in KINDS.keys():  # noqa: SIM118 (it is not a dict)
        assert KINDS.contains(key)
        assert issubclass(KINDS.get(key), BaseAgent)
        assert (KINDS.get(key).__doc__ or "").strip()


def test_the_built_in_kinds_are_in_the_order_of_their_page() -> None:
    first = ["simple", "orchestrator", "native_react", "react", "native_openhands", "rlm", "openhands", "claude_code"]
    product = [*first, "operative", "monitor_operative"]
    assert list(KINDS.keys())[: len(product)] == product


def test_the_classes_of_all_kinds_can_be_imported_beside_the_registry() -> None:
    classes = [KINDS.get(key) for key in KINDS.keys()]  # noqa: SIM118 (KINDS is not a dict)
    assert [getattr(kinds, kind.__name__) for kind in classes] == classes
    with pytest.raises(AttributeError, match="NoAgent"):
        _ = kinds.NoAgent
