"""The tree in the docstring of ``spass.core.errors`` contains every exception of the package."""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import spass
from spass.core import errors
from spass.core.errors import SpassError
from spass.web.errors import HTTP_ERROR_TYPES, http_error_type

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
DOCUMENT = errors.__doc__ or ""
TREE = re.search(r"    SpassError\n(.*?)\n\n", DOCUMENT, re.DOTALL)
UPLOAD_CODES = frozenset({"overtaken", "index_replaced", "superseded", "survey_timeout"})
"""Codes that appear in the record of an upload, not in an error envelope."""


@pytest.fixture(scope="module", autouse=True)
def _import_all_modules() -> None:
    """Import every module of the gateway, so that every exception class exists."""
    for module in pkgutil.walk_packages(spass.__path__, "spass."):
        if not module.name.startswith("spass.tools.editor.child"):
            importlib.import_module(module.name)


def subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("spass."):
            yield child
        yield from subclasses(child)


def documented_parents() -> Mapping[str, str]:
    """Return the parent of each class in the tree of the docstring."""
    assert TREE is not None
    parents: dict[str, str] = {}
    for block in re.split(r"^    [├└]── ", TREE[1], flags=re.MULTILINE)[1:]:
        branch, *rest = re.findall(r"\w+|[()]", block)
        parents[branch], owner, leaf = "SpassError", branch, branch
        for word in rest:
            if word == "(":
                owner = leaf
            elif word == ")":
                owner = branch
            else:
                parents[word], leaf = owner, word
    return parents


def test_the_tree_has_every_error_under_its_base_class() -> None:
    assert documented_parents() == {error.__name__: error.__base__.__name__ for error in subclasses(SpassError) if error.__base__}


def test_each_branch_has_one_http_status_and_no_code() -> None:
    branches = [error for error in SpassError.__subclasses__() if error.__module__.startswith("spass.")]
    assert set(branches) == set(HTTP_ERROR_TYPES)
    assert not any(branch.code for branch in branches)
    assert len({kind.status for kind in HTTP_ERROR_TYPES.values()}) == len(branches)


def test_each_leaf_has_a_unique_code_and_the_status_of_its_branch() -> None:
    codes: dict[str, str] = {}
    for error in subclasses(SpassError):
        assert issubclass(error, SpassError)
        if error in HTTP_ERROR_TYPES:
            continue
        branch = next(parent for parent in error.__mro__ if parent in HTTP_ERROR_TYPES)
        assert http_error_type(error("x")) == HTTP_ERROR_TYPES[branch]
        if "code" in vars(error):
            assert codes.setdefault(error.code, error.__name__) == error.__name__
        assert error.code
    assert codes.keys() >= UPLOAD_CODES


def test_only_errors_of_core_have_a_code_for_the_envelope() -> None:
    errors_outside_core = {
        error for error in subclasses(SpassError) if "code" in vars(error) and error.__module__ != errors.__name__
    }
    assert {error.code for error in errors_outside_core if issubclass(error, SpassError)} == UPLOAD_CODES


def test_the_page_about_errors_explains_each_code_below_its_status() -> None:
    documented: dict[str, str] = {}
    for title, section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for code, text in re.findall(r"^### `(\w+)`\n\n(.+?)(?=^#|\Z)", section, re.DOTALL | re.MULTILINE):
            assert code not in documented
            assert text.strip()
            documented[code] = title.partition(":")[0]
    leaves = [error for error in subclasses(SpassError) if issubclass(error, SpassError) and error.code]
    expected = {error.code: str(http_error_type(error("x")).status) for error in leaves}
    in_records = {code for code, status in documented.items() if status == "The record of an upload"}
    assert in_records >= UPLOAD_CODES
    assert {code: status for code, status in documented.items() if code not in in_records} == {
        code: status for code, status in expected.items() if code not in UPLOAD_CODES
    }


def test_the_docstring_lists_every_other_exception_as_internal() -> None:
    internal = set(re.findall(r"\w+", DOCUMENT.partition("handles it:\n")[2]))
    others = {
        error.__name__
        for error in subclasses(Exception)
        if not issubclass(error, SpassError) and not internal & {base.__name__ for base in error.__mro__[1:]}
    }
    assert others
    assert others == internal
