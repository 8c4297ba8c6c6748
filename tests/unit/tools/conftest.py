"""A real rag room for the tools that curate it."""

from tests.unit.rag.conftest import aws, emulated_aws, harness

__all__ = ["aws", "emulated_aws", "harness"]
