"""A store for each test."""

from tests.unit.completions.conftest import store

__all__ = ["store"]
