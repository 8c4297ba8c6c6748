"""Find a file in a tree, and tell what is in its place."""

from spass.core.errors import InvalidPath, WorkspaceFileNotFound
from spass.workspaces.paths import WorkspacePath, show
from spass.workspaces.tree import TreeAt, TreeFile


def find_file(at: TreeAt, path: WorkspacePath) -> TreeFile:
    """Return the file at ``path``.

    Raises:
        InvalidPath: the path is a folder, or below a file.
        WorkspaceFileNotFound: there is no such file.
    """
    file = at.tree.files.get(path)
    if file is None:
        if at.tree.is_folder(path):
            raise InvalidPath(f"{show(path)} is a folder in version {at.version}. Name a file.", param="path")
        check_folders_above(at, path)
        raise WorkspaceFileNotFound(f"There is no file {show(path)} in version {at.version}.", param="path")
    return file


def check_folders_above(at: TreeAt, path: str) -> None:
    """Check that no file is where ``path`` has a folder.

    Raises:
        InvalidPath: a part of the path is a file.
    """
    ends = [end for end, character in enumerate(path) if character == "/"]
    above = next((path[:end] for end in ends if path[:end] in at.tree.files), None)
    if above is not None:
        raise InvalidPath(f"Nothing is below {show(above)}, because it is a file in version {at.version}.", param="path")
