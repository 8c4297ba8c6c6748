"""The documentation says what the code says, and its example of a tool works."""

import asyncio
import importlib.util
import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.completions.chat_request import ChatCompletionRequest
from spass.core.events import ToolCallFinished
from spass.core.messages import ToolCall
from spass.tenancy.config import GatewayConfig, TenantDefaults, load_gateway_config
from spass.tenancy.settings import Cascade
from spass.tools import registry
from spass.tools.toolbox import Toolbox
from tests.unit.tools.fakes import FakeReader, rag_with, scope_for

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
AGENTS = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
MAX_SECTION_BYTES = 8192
"""The demo ingests each section as one document."""


def rows() -> dict[str, tuple[str, str]]:
    """The table of keys: key → meaning, default."""
    table = CONFIGURATION.split("## Every key", 1)[1]
    found = re.findall(r"(?m)^\| `([^`]+)` \| (.+) \| (.+) \|$", table)
    assert len(found) == table.count("\n|") - 2, "a row of the table cannot be read"
    assert len({key for key, _, _ in found}) == len(found), "a key stands in the table twice"
    return {key: (meaning, default) for key, meaning, default in found}


def fields(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key below ``model`` as the table writes it. A tenant's own defaults are one row: they have the keys of `defaults`."""
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is None or inner is TenantDefaults:
            yield at + name, field
        else:
            yield from fields(inner, f"{at}{name}." if inner is field.annotation else f"{at}{name}[].")


def model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := model_in(inner))), None)


def test_every_key_of_gateway_yaml_stands_in_the_table_and_no_other() -> None:
    assert set(rows()) == {key for key, _ in fields(GatewayConfig)}


@pytest.mark.parametrize(("key", "field"), list(fields(GatewayConfig)))
def test_a_default_in_the_table_is_that_of_the_code(key: str, field: FieldInfo) -> None:
    told = rows()[key][1]
    if field.is_required():
        # A backend's name may be absent all the same: it is called after its provider.
        assert told == ("the provider" if key == "llm.backends[].name" else "required")
    elif field.default is None:  # what stands in for it is told in words
        assert not told.startswith("`")
        assert type(None) in get_args(field.annotation)
    else:
        assert yaml.safe_load(told.strip("`")) == plain(field.default)


def plain(default: Any) -> object:
    if isinstance(default, BaseModel):
        return default.model_dump(exclude_unset=True)
    if isinstance(default, date):
        return default
    return [*default] if isinstance(default, tuple) else default if isinstance(default, int | str | dict) else float(default)


def test_every_key_of_an_agent_is_explained() -> None:
    assert [name for name in AgentSpec.model_fields if f"`{name}`" not in AGENTS] == []


def test_every_field_that_chat_refuses_stands_in_the_page_about_openai() -> None:
    page = (ROOT / "docs" / "openai.md").read_text(encoding="utf-8")
    refused = [name for name, field in ChatCompletionRequest.model_fields.items() if field.annotation is type(None)]
    assert "logprobs" in refused
    assert [name for name in refused if f"`{name}`" not in page] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_a_section_fits_into_one_document(path: Path) -> None:
    sections = re.split(r"(?m)^(?=#{1,3} )", path.read_text(encoding="utf-8"))
    assert [section.splitlines()[0] for section in sections if len(section.encode()) >= MAX_SECTION_BYTES] == []


def test_the_example_of_an_agent_that_searches_its_past_is_one(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8").split("## What a summary forgot", 1)[1]
    (tmp_path / "keeper.yaml").write_text(section.split("```yaml\n", 1)[1].split("```", 1)[0], encoding="utf-8")
    agents = AgentRegistry.load(tmp_path, load_gateway_config(ROOT / "gateway.yaml"), registry.TOOLS)
    assert agents.get("keeper").tools == ("lineage_search",)


def test_the_example_of_a_tool_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    section = AGENTS.split("## Adding a tool", 1)[1]
    source, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (name, target), *others = cast("dict[str, str]", yaml.safe_load(f"{{{line}}}")).items()
    assert not others
    module = target.partition(":")[0]
    assert f"`shared/{module.replace('.', '/')}.py`" in section

    path = tmp_path / "tool.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.setitem(sys.modules, module, loaded)
    monkeypatch.setitem(cast("dict[str, str]", registry.TOOLS), name, target)

    def answer(arguments: str) -> ToolCallFinished:
        return asyncio.run(toolbox.execute(scope_for(), ToolCall("c1", name, arguments), allowed=[name]))

    toolbox = Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig()))
    try:
        (described,) = toolbox.specs([name], scope_for().caller.identity)
        assert described.description.startswith("Tells when a shop is open.")
        assert answer('{"city": "Berlin"}').result == {"city": "Berlin", "open": "9 to 18"}
        assert answer('{"city": "Rome"}').result == {
            "error": {"code": "tool_failed", "message": "There is no shop in 'Rome'. Ask for one of: Berlin, Hamburg."}
        }
        agents = tmp_path / "agents"
        agents.mkdir()
        (agents / "clerk.yaml").write_text(f"name: clerk\nmodel: llama-4-scout\ntools: [{name}]\n")
        AgentRegistry.load(agents, load_gateway_config(ROOT / "gateway.yaml"), registry.TOOLS)
    finally:
        registry.load_tool.cache_clear()
