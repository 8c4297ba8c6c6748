"""`python -m spass.tools.editor.child <engine> <gateway>`: make one edit. The working directory is the folder that the child may
write.

``<engine>`` is a module with a function ``edit(edit, connection, root)``, which returns an ``Edited``. ``<gateway>`` is the
process that started this one.
"""

import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path

from spass.tools.editor.child import stand_ins
from spass.tools.editor.child.connection import Connection, EditFailed
from spass.tools.editor.child.fence import close_fence


def main() -> None:
    connection = Connection(os.fdopen(os.dup(0), "rb"), os.dup(1))
    os.dup2(2, 1)  # what Aider prints is not a line for the gateway
    try:
        make_edit(connection, Path.cwd())
    except EditFailed as failure:
        connection.send({"type": "failed", "message": failure.args[0]})
    except BaseException as error:  # noqa: BLE001
        connection.send({"type": "crashed", "error": describe(error)})
    os._exit(0)  # without waiting for threads


def make_edit(connection: Connection, folder: Path) -> None:
    close_fence(str(folder), int(sys.argv[2]), lambda event: connection.send({"type": "blocked", "event": event}))
    connection.send({"type": "ready"})
    edit = connection.receive_edit()
    # The kernel ends the child even if the gateway cannot. SIGALRM ends a process that has no handler for it.
    signal.setitimer(signal.ITIMER_REAL, edit.seconds + 1)
    stand_ins.install()
    edited = import_module(sys.argv[1]).edit(edit, connection, folder / "files")
    connection.send({"type": "result", "answer": edited.answer, "files": edited.files})


def describe(error: BaseException) -> str:
    """Return the type of an error and its place, without its text, which may quote a file."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"


if __name__ == "__main__":
    main()
