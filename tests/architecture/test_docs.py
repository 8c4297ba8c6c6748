"""The documentation agrees with the code, and its examples work."""

import asyncio
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from spass.agents import kinds
from spass.agents.kinds import KINDS
from spass.agents.parameters import parameters_of
from spass.agents.registry import AgentRegistry
from spass.agents.spec import file_model
from spass.completions.chat_request import ChatCompletionRequest
from spass.core.effects import ToolOutcome
from spass.core.messages import ToolCall
from spass.tenancy.config import GatewayConfig, TenantDefaults
from spass.tenancy.config_file import load_gateway_config
from spass.tools import registry
from tests.unit.tools.fakes import scope_for, toolbox_of

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
TOOLS_PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
AGENTS = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
MAX_SECTION_BYTES = 8192
"""The demo ingests each section as one document."""


def rows() -> dict[str, tuple[str, str]]:
    """Return the rows of the table of keys: for each key its meaning and its default."""
    table = CONFIGURATION.split("## Every key", 1)[1]
    matches = re.findall(r"(?m)^\| `([^`]+)` \| (.+) \| (.+) \|$", table)
    assert len(matches) == table.count("\n|") - 2, "a row of the table does not match the pattern"
    assert len({key for key, _, _ in matches}) == len(matches), "a key has two rows in the table"
    return {key: (meaning, default) for key, meaning, default in matches}


def fields(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key below ``model``, spelled as in the table. A tenant's defaults are one row, because they have the keys of
    `defaults`."""
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is None or inner is TenantDefaults:
            yield at + name, field
        else:
            yield from fields(inner, f"{at}{name}." if inner is field.annotation else f"{at}{name}[].")


def model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := model_in(inner))), None)


def test_the_table_has_exactly_the_keys_of_gateway_yaml() -> None:
    assert set(rows()) == {key for key, _ in fields(GatewayConfig)}


@pytest.mark.parametrize(("key", "field"), list(fields(GatewayConfig)))
def test_a_default_in_the_table_equals_the_default_in_the_code(key: str, field: FieldInfo) -> None:
    documented = rows()[key][1]
    if field.is_required():
        # A backend without a name gets the name of its provider.
        assert documented == ("the provider" if key == "llm.backends[].name" else "required")
    elif field.default is None:  # the table describes the effect in words
        assert not documented.startswith("`")
        assert type(None) in get_args(field.annotation)
    else:
        assert yaml.safe_load(documented.strip("`")) == plain(field.default)


def plain(default: Any) -> object:
    """Return a default as YAML reads it."""
    if isinstance(default, BaseModel):
        return default.model_dump(exclude_unset=True)
    if isinstance(default, date):
        return default
    return [*default] if isinstance(default, tuple) else default if isinstance(default, int | str | dict) else float(default)


def test_the_page_about_agents_names_every_key() -> None:
    keys = {name for kind in documented_kinds() for name in file_model(kind).model_fields}
    assert [name for name in sorted(keys) if f"`{name}`" not in AGENTS] == []


def test_the_page_about_openai_names_every_refused_field() -> None:
    page = (ROOT / "docs" / "openai.md").read_text(encoding="utf-8")
    refused = [name for name, field in ChatCompletionRequest.model_fields.items() if field.annotation is type(None)]
    assert "logprobs" in refused
    assert [name for name in refused if f"`{name}`" not in page] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_each_section_is_small_enough_for_one_document(path: Path) -> None:
    sections = re.split(r"(?m)^(?=#{1,3} )", path.read_text(encoding="utf-8"))
    assert [section.splitlines()[0] for section in sections if len(section.encode()) >= MAX_SECTION_BYTES] == []


def test_the_example_of_an_agent_that_searches_its_lineage_is_valid(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8").split("## What a summary forgot", 1)[1]
    (tmp_path / "keeper.yaml").write_text(section.split("```yaml\n", 1)[1].split("```", 1)[0], encoding="utf-8")
    agents = AgentRegistry.load(tmp_path, load_gateway_config(ROOT / "gateway.yaml"))
    assert agents.get("keeper").tools == ("lineage_search",)


def test_the_table_of_tools_has_every_tool_with_its_category_and_its_arguments() -> None:
    documented = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \| (.*?) \| .+ \|$", TOOLS_PAGE.split("## All tools", 1)[1])
    expected = []
    for spec in (registry.load_tool(name).spec() for name in registry.TOOLS):
        required = cast("Sequence[str]", spec.parameters.get("required", ()))
        names = cast("Mapping[str, object]", spec.parameters["properties"])
        expected.append((spec.name, spec.category, ", ".join(f"`{name}{'' if name in required else '?'}`" for name in names)))
    # An engineer's own tool, which is one file and one line, needs no row. Its line is the last one.
    assert documented == expected[: len(documented)]
    assert documented[-1][0] == "aider_edit"


def test_the_example_of_a_tool_runs_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    section = EXTENDING.split("## Add a tool\n", 1)[1].split("\n## ", 1)[0]
    source, line = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)
    ((name, toolset),) = re.findall(r'"(\w+)": ToolEntry\("(\w+)"\),\n', line)
    module = f"spass.tools.builtin.{name}"
    assert f"`shared/{module.replace('.', '/')}.py`" in section

    path = tmp_path / "tool.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    tool_module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool_module)
    monkeypatch.setitem(sys.modules, module, tool_module)
    monkeypatch.setitem(cast("dict[str, registry.ToolEntry]", registry.TOOLS), name, registry.ToolEntry(toolset))
    registry.tools_of.cache_clear()

    def answer(arguments: str) -> ToolOutcome:
        return asyncio.run(toolbox.execute(scope_for(), ToolCall("c1", name, arguments), allowed=[name]))

    toolbox = toolbox_of()
    try:
        (tool_spec,) = toolbox.specs(scope_for(), [name])
        assert tool_spec.description.startswith("Tells when a shop is open.")
        assert answer('{"city": "Berlin"}').result == {"city": "Berlin", "open": "9 to 18"}
        assert answer('{"city": "Rome"}').result == {
            "error": {"code": "tool_failed", "message": "There is no shop in 'Rome'. Ask for one of: Berlin, Hamburg."}
        }
        agents = tmp_path / "agents"
        agents.mkdir()
        (agents / "clerk.yaml").write_text(f"name: clerk\nmodel: llama-4-scout\ntools: [{name}]\n")
        AgentRegistry.load(agents, load_gateway_config(ROOT / "gateway.yaml"))
    finally:
        registry.load_tool.cache_clear()
        registry.tools_of.cache_clear()


def test_the_example_of_a_kind_and_its_test_run_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    section = EXTENDING.split("## Add a kind\n", 1)[1].split("\n## ", 1)[0]
    source, line, test = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)
    (key, target), *others = cast("dict[str, str]", yaml.safe_load(f"{{{line}}}")).items()
    assert not others
    module, _, name = target.rpartition(".")
    assert f"`shared/{module.replace('.', '/')}.py`" in section
    assert target.startswith("spass.agents.kinds.")

    example = ModuleType(module)
    monkeypatch.setitem(sys.modules, module, example)
    exec(compile(source, "kind.py", "exec"), vars(example))
    tests: dict[str, Any] = {}
    exec(compile(test, "test_kind.py", "exec"), tests)
    tests["test_the_corrected_answer_is_the_answer"]()

    monkeypatch.setattr(KINDS, "_registered", {key: vars(example)[name]})
    (tmp_path / "careful.yaml").write_text(re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0])
    agents = AgentRegistry.load(tmp_path, load_gateway_config(ROOT / "gateway.yaml"))
    assert (agents.get("careful").kind, parameters_of(agents.get("careful").build())["looks"]) == (key, 2)


def test_the_defaults_of_the_kinds_are_those_of_the_code() -> None:
    table = AGENTS.split("### Defaults of the kinds", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"(?m)^\| (`.+?`) \| (.+?) \| (.+?) \| (.+?) \|$", table)
    documented = {kind: values for names, *values in rows for kind in re.findall(r"`(\w+)`", names)}
    assert documented.keys() == {KINDS.canonical(kind) for kind in documented_kinds()} - {"openhands", "claude_code"}
    for kind, values in documented.items():
        defaults = {field.name: field.default for field in dataclasses.fields(KINDS.get(kind))}
        for name, value in zip(("max_tokens", "temperature", "max_turns"), values, strict=True):
            assert value == str(defaults[name]), (kind, name)


def documented_kinds() -> set[str]:
    """Return the keys in the table of kinds. An engineer's own kind, which is one file and one line, needs no row."""
    table = AGENTS.split("## The kinds", 1)[1].split("##", 1)[0]
    words = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    return set(re.findall(r"`(\w+)`", words)) & set(KINDS.keys())


def test_the_table_of_kinds_has_every_kind_of_the_product() -> None:
    own = {KINDS.canonical(key) for key in documented_kinds()}
    classes = {KINDS.get(key).__name__ for key in own}
    assert classes == {name for name in kinds.__all__ if name.endswith("Agent")} - {"BaseAgent", "ToolUsingAgent"}
    assert "react" in documented_kinds()
