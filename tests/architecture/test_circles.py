"""No circle of files: each can be read after those that it uses."""

from graphlib import TopologicalSorter

import grimp


def test_no_file_uses_itself_through_others() -> None:
    """Imports within functions count. Annotations do not: a file may name the type of its caller for the type checker."""
    graph = grimp.build_graph("spass", exclude_type_checking_imports=True, cache_dir=None)
    uses = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(uses).prepare()  # raises CycleError, which names the circle
