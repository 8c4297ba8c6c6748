"""The axis ``task_decomposition``: the part of the prompt that says how to divide a task."""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

Decomposition: TypeAlias = Literal["phased", "monolithic", "hierarchical"]

DECOMPOSITIONS: Final[Mapping[Decomposition, str]] = {
    "phased": """\
Work in phases. Before you begin, divide the task into phases and name them. Finish each phase, and check what it has found,
before you begin the next one.""",
    "hierarchical": """\
Divide the task into sub-tasks, and each sub-task that is still large into its own sub-tasks. Solve the smallest ones first, and
combine their results step by step until the whole task is solved.""",
    "monolithic": "",
}
