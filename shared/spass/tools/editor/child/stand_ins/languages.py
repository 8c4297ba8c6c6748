"""For ``grep_ast.tsl`` and ``tree_sitter``: Aider's repo map and linter parse files. Both are off."""

from typing import Final

USING_TSL_PACK: Final = True


class Query:
    """A query of a syntax tree, which only the repo map makes."""


def get_language(name: str) -> None:
    """Return no language."""


def get_parser(name: str) -> None:
    """Return no parser."""
