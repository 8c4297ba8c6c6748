"""What tests need in place of models and AWS (docs/testing.md). The product imports nothing of it."""
