"""Fixtures of rag, for the tools that read and change indices."""

from tests.unit.rag.conftest import aws, harness

__all__ = ["aws", "harness"]
