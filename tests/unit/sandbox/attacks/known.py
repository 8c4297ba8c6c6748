"""Facts that confined code can learn. ``docs/code.md`` lists them, and a test shows that each is still true."""

from typing import Final

from tests.unit.sandbox.attacks.attack import Attack

KNOWN: Final = (
    Attack(
        "that a file exists, and how large it is",
        """
status = os.stat(W["secret_file"])
gain(f"{status.st_size} bytes, written at {status.st_mtime}")
try:
    os.stat(W["secret_file"] + ".missing")
except FileNotFoundError:
    gain("another file does not exist")
""",
    ),
    Attack("the numbers of the running processes", 'os.stat(f"/proc/{W[\'victim\']}")\ngain("a process")'),
    Attack("the name of the machine and its kernel", "gain(os.uname())"),
    Attack(
        "the paths of the interpreter and of its own folder",
        """
if all(map(os.path.isabs, (sys.executable, os.__file__, os.getcwd()))):
    gain(f"{sys.executable} {os.__file__} {os.getcwd()}")
""",
    ),
    Attack(
        "the names of installed packages",
        """
folder = f"{os.path.dirname(os.__file__)}/site-packages"
gain(os.listdir(folder if os.path.isdir(folder) else os.path.dirname(os.__file__)))
""",
    ),
    Attack(
        "a report that the code has written itself",
        """
import gc
connection = next(each for each in gc.get_objects() if type(each).__name__ == "Connection" and hasattr(each, "send"))
report = {"number": 0, "output": "GAINED a report", "error": None, "truncated": 0, "final": None, "exceeded": None}
connection.send("cell", report)
os._exit(0)
""",
    ),
)
