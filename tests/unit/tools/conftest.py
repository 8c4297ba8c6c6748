"""A real rag room for the tools that curate it."""

from tests.unit.rag.conftest import aws, harness

__all__ = ["aws", "harness"]
