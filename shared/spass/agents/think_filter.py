"""The think filter, under the name that the driver imports. The code is in ``core``, because a tool uses it too."""

from spass.core.think_filter import ThinkFilter

__all__ = ["ThinkFilter"]
