"""Replacements for models and AWS in tests (docs/testing.md). The product must not import this package."""
