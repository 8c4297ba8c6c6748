"""Code in the place of the engine attacks the gateway and the machine. Each attack ends the edit and leaves nothing."""

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from spass.core.messages import Message
from spass.tools.base import ToolError
from spass.tools.editor.aider import MAX_CHILDREN, AiderEditor
from spass.tools.editor.protocol import EditRequest, EditResult
from tests.sampling import sampled
from tests.unit.tools.editor.children import children

pytestmark = pytest.mark.anyio

KEY = "sk-planted-in-the-gateway"
HEAD = """
import os, sys, time
from spass.tools.editor.child.connection import Edited

def edit(edit, connection, root):
"""
TAIL = "\n    return Edited('', {})\n"


@dataclass
class Attack:
    """An editor whose engine is a given function body. It can use ``connection`` and ``root``."""

    folder: Path
    asked: int = 0

    async def run(self, body: str, *, seconds: float = 20.0) -> EditResult:
        library = self.folder / "packages"
        (library / "aider").mkdir(parents=True, exist_ok=True)
        (library / "attack.py").write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    ") + TAIL)
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        editor = AiderEditor(library, engine="attack", temporary=temporary)
        request = EditRequest("tenant", "Attack.", {"main.py": "x = 1\n"}, read_only={"notes.txt": ""}, seconds=seconds)
        return await editor.edit(request, self._ask, lambda path: path == "allowed.py", lambda _: None)

    async def _ask(self, messages: Sequence[Message]) -> str:
        self.asked += 1
        return "Here."

    def left(self) -> list[str]:
        """Return what the edits left in the temporary folder."""
        return [path.name for path in (self.folder / "temporary").iterdir()]


@pytest.fixture
async def attack(tmp_path: Path) -> AsyncIterator[Attack]:
    attack = Attack(tmp_path)
    yield attack
    assert attack.left() == []
    assert children() == []
    assert not (tmp_path / "outside").exists()


INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
OUTSIDE = "os.path.join(os.path.dirname(os.path.dirname(os.getcwd())), 'outside')"


FORBIDDEN: Final = [
    ("import socket; socket.socket()", "socket.__new__"),
    ("import socket; socket.getaddrinfo('example.com', 80)", "socket.getaddrinfo"),
    ("os.fork()", "os.fork"),
    ("os.posix_spawn('/bin/true', ['true'], {})", "os.posix_spawn"),
    ("os.execv('/bin/true', ['true'])", "os.exec"),
    ("os.system('true')", "os.system"),
    ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
    ("import pty; pty.spawn('true')", "pty.spawn"),
    (f"open({OUTSIDE}, 'w')", "open .*outside"),
    (f"os.open({OUTSIDE}, os.O_CREAT | os.O_WRONLY)", "open .*outside"),
    ("open('../../outside', 'a')", "open .*outside"),
    ("os.symlink('/etc/passwd', root / 'main.py')", "os.symlink"),
    (f"os.mkdir({OUTSIDE})", "os.mkdir"),
    (f"open('inside', 'w').close(); os.rename('inside', {OUTSIDE})", "os.rename"),
    ("os.remove(os.path.join(os.getcwd(), '..', '..', 'packages', 'attack.py'))", "os.remove"),
    ("os.chdir('/')", "os.chdir"),
    ("os.chmod('/', 0o777)", "os.chmod"),
    ("os.kill(os.getppid(), 9)", "os.kill"),
    ("open('/proc/self/environ').read()", "open /proc"),
    ("os.listdir('/proc')", "os.listdir /proc"),
    ("os.open('/proc/1/mem', os.O_RDONLY)", "open /proc"),
    ("import ctypes; ctypes.CDLL(None).fork()", "ctypes.dlopen"),
    ("import _ctypes; _ctypes.dlopen('libc.so.6', 0)", "ctypes.dlopen"),
    (f"import {INTERPRETERS} as interpreters; interpreters.create()", "cpython.PyInterpreterState_New"),
    (f"os.mkfifo({OUTSIDE})", "os.mkfifo"),
    (f"os.mknod({OUTSIDE})", "os.mknod"),
    ("import posix; posix.setpriority(posix.PRIO_PROCESS, posix.getppid(), 19)", "os.setpriority"),
    ("import signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)", "os.pidfd_open"),
    ("import signal; signal.pidfd_send_signal(3, 0)", "signal.pidfd_send_signal"),
    ("import _posixsubprocess; _posixsubprocess.fork_exec()", "_posixsubprocess.fork_exec"),
    ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))", "resource.setrlimit"),
]


@pytest.mark.parametrize(("body", "event"), sampled(FORBIDDEN, 4))
async def test_what_an_edit_never_does_ends_it(attack: Attack, body: str, event: str) -> None:
    with pytest.raises(ToolError, match=rf"tried to do what no edit may do: {event}") as caught:
        await attack.run(body)
    assert caught.value.code == "edit_failed"


EXCESSES: Final = [
    ("bytearray(8 * 2**30)", "failed with MemoryError"),
    ("blocks = [bytearray(2**24) for _ in range(512)]", "failed with MemoryError"),
    ("open('big', 'wb').write(bytes(2**25))", "failed with OSError"),
    (
        "for number in range(10**6):\n    open(str(number), 'wb').write(bytes(2**23)); time.sleep(0.01)",
        "wrote more than 64 MiB",
    ),
    ("files = [open(str(number), 'wb') for number in range(1000)]", "failed with OSError"),
    ("for _ in range(1000): connection.ask([])", "more than 8 model calls"),
    ("while True: connection.may_edit('x')", "wrote too much"),
    ("while True: connection.report('applying')", "wrote too much"),
    ("connection.send({'type': 'progress', 'stage': 'x' * 10**6})", "not part of an edit"),
    ("os.write(connection._output, b'garbage\\n')", "not part of an edit"),
    ("os.write(connection._output, b'{}\\n')", "not part of an edit"),
    ("os.write(connection._output, b'\\xff\\xfe\\n')", "not part of an edit"),
    ("os.write(connection._output, b'[' * 100_000 + b'\\n')", "not part of an edit"),
    ("connection.ask([{'role': 'tool', 'content': ''}])", "not part of an edit"),
    ("while True: os.write(connection._output, bytes(2**16))", "a line that is too long"),
    ("connection.ask([{'role': 'user', 'content': 'x' * 2**20}] * 5)", "became too long"),
    ("for _ in range(8): connection.may_edit('x' * 10**7)", "wrote too much"),
    ("os._exit(0)", "ended unexpectedly"),
    ("os.abort()", "ended unexpectedly"),
    ("sys.exit('a secret')", "failed with SystemExit at attack.py"),
    ("raise ValueError('a secret')", "failed with ValueError at attack.py"),
    ("open('/etc/passwd').read()", "failed with PermissionError"),
    ("return Edited('', {'other.py': ''})", "may not change"),
    ("return Edited('', {'notes.txt': 'x'})", "may not change"),
    ("return Edited('', {'../main.py': ''})", "may not change"),
    ("return Edited('', {'/etc/passwd': ''})", "may not change"),
    ("return Edited('', {'./allowed.py': ''})", "may not change"),
]


@pytest.mark.parametrize(("body", "message"), sampled(EXCESSES, 4))
async def test_a_child_that_goes_too_far_fails_its_edit(attack: Attack, body: str, message: str) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        await attack.run(body)
    assert caught.value.code == "edit_failed"
    assert "secret" not in caught.value.message
    assert attack.asked <= 8


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(60)",
        "while True: pass",
        "import signal\nfor number in (1, 2, 3, 13, 14, 15): signal.signal(number, signal.SIG_IGN)\ntime.sleep(60)",
        "import threading\nconnection.may_edit('x')\nos.close(0); os.close(connection._output); time.sleep(60)",
    ],
)
async def test_a_child_that_hangs_is_killed_at_the_deadline(attack: Attack, body: str) -> None:
    started = time.monotonic()
    with pytest.raises(ToolError) as caught:
        await attack.run(body, seconds=1.0)
    assert caught.value.code in {"edit_timeout", "edit_failed"}
    assert time.monotonic() - started < 3


async def test_new_files_need_permission_and_unchanged_files_are_not_results(attack: Attack) -> None:
    result = await attack.run("return Edited('Done.', {'allowed.py': 'y', 'main.py': edit.files['main.py']})")
    assert result == EditResult({"allowed.py": "y"}, "Done.")


async def test_a_child_finds_no_key_of_the_gateway(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPASS_TEST_KEY", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    result = await attack.run(
        "return Edited(repr([dict(os.environ), sys.path, sys.argv, os.listdir('/dev/fd') if 0 else '']), {})"
    )
    assert KEY not in result.answer
    variables = await attack.run("return Edited(' '.join(sorted(os.environ)), {})")
    assert set(variables.answer.split()) - {"LD_LIBRARY_PATH", "LC_CTYPE"} == {"HOME", "PATH", "PYTHONPATH"}
    with pytest.raises(ToolError, match="open /proc"):
        await attack.run("return Edited(open(f'/proc/{os.getppid()}/environ').read(), {})")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the file")
async def test_the_memory_of_the_gateway_belongs_to_root(attack: Attack) -> None:
    await attack.run("")
    # Linux gives these files of a process that is not dumpable to root, so other processes of its user cannot open them.
    assert {os.stat(f"/proc/self/{name}").st_uid for name in ("environ", "mem", "maps")} == {0}  # noqa: PTH116


async def test_a_child_inherits_no_open_file(attack: Attack) -> None:
    with (attack.folder / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        result = await attack.run(
            """
            found = []
            for number in range(3, 64):
                try:
                    os.fstat(number)
                    found.append(number)
                except OSError:
                    pass
            return Edited(repr(len(found)), {})
            """
        )
    assert result.answer == "2"  # the child's copies of its two pipes


async def test_a_deep_and_locked_folder_is_removed(attack: Attack) -> None:
    await attack.run(
        """
        path = os.getcwd()
        for _ in range(300):
            path += "/ab"
            os.mkdir(path)
            open(path + ".txt", "w").close()
        os.mkdir("locked", 0o000)
        """
    )
    assert attack.left() == []


async def test_a_child_ends_with_the_gateway(attack: Attack, tmp_path: Path) -> None:
    program = f"""
        import asyncio, os, pathlib
        from tests.unit.tools.editor.test_fences import Attack, children
        attack = Attack(pathlib.Path({str(tmp_path)!r}))
        async def main():
            edit = asyncio.ensure_future(attack.run("connection.may_edit('x'); time.sleep(60)"))
            while not children():
                await asyncio.sleep(0.01)
            print(*attack.left(), *children(), flush=True)
            os.kill(os.getpid(), 9)
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    gateway = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert gateway.returncode == -9, gateway.stderr
    folder, child = gateway.stdout.split()
    assert attack.left() == [folder]
    if sys.platform == "linux":
        async with asyncio.timeout(30):  # half of what the child would sleep
            await has_ended(int(child))
    await attack.run("")  # the next edit removes the folder


async def has_ended(process: int) -> None:
    """Wait until a process has ended."""
    while is_running(process):
        await asyncio.sleep(0.05)


def is_running(process: int) -> bool:
    """Return False also for a zombie: the process that adopted it has not asked for its end yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def test_edits_side_by_side_do_not_remove_the_folders_of_others(attack: Attack) -> None:
    body = "time.sleep(0.3); return Edited(open('mine', 'w').write('x') and 'Done.', {})"
    results = await asyncio.gather(*(attack.run(body) for _ in range(8)))
    assert {result.answer for result in results} == {"Done."}


async def test_many_edits_of_a_tenant_have_eight_children_and_leave_one_to_another_tenant(tmp_path: Path) -> None:
    library = tmp_path / "packages"
    (library / "aider").mkdir(parents=True)
    (library / "attack.py").write_text(HEAD + "    connection.ask([])" + TAIL)
    editor = AiderEditor(library, engine="attack", temporary=tmp_path)
    waiting, most = 0, 0
    all_wait, release = asyncio.Event(), asyncio.Event()

    async def ask(_: Sequence[Message]) -> str:
        nonlocal waiting, most
        waiting += 1
        most = max(most, len(children()))
        if waiting == MAX_CHILDREN:
            all_wait.set()
        await release.wait()
        return ""

    async def answer(_: Sequence[Message]) -> str:
        return ""

    progress: list[str] = []
    request = EditRequest("tenant", "Attack.", {"main.py": ""}, seconds=60.0)
    edits = (editor.edit(request, ask, lambda _: False, progress.append) for _ in range(2 * MAX_CHILDREN))
    running = asyncio.gather(*edits)
    await all_wait.wait()
    others: list[str] = []
    await editor.edit(replace(request, tenant_id="other"), answer, lambda _: False, others.append)
    assert (waiting, most) == (MAX_CHILDREN, MAX_CHILDREN)
    release.set()
    await running
    assert waiting == 2 * MAX_CHILDREN
    assert most == MAX_CHILDREN
    assert progress.count("Waiting for other edits…") == MAX_CHILDREN
    assert "Waiting for other edits…" not in others


async def test_an_edit_that_waits_for_others_ends_with_its_time(tmp_path: Path) -> None:
    library = tmp_path / "packages"
    (library / "aider").mkdir(parents=True)
    (library / "attack.py").write_text(HEAD + "    time.sleep(60)" + TAIL)
    editor = AiderEditor(library, engine="attack", temporary=tmp_path)
    request = EditRequest("tenant", "Attack.", {"main.py": ""}, seconds=1.0)
    edits = (editor.edit(request, _refuse, lambda _: False, lambda _: None) for _ in range(MAX_CHILDREN + 2))
    errors = await asyncio.gather(*edits, return_exceptions=True)
    assert {error.code for error in errors if isinstance(error, ToolError)} == {"edit_timeout"}
    assert len(errors) == MAX_CHILDREN + 2
    assert children() == []


async def _refuse(_: Sequence[Message]) -> str:
    raise AssertionError("no model is asked")


async def test_a_folder_of_another_user_is_not_touched(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = attack.folder / "temporary" / "spass-edit-1-planted"
    planted.mkdir(parents=True)
    planted.chmod(0o755)
    (planted / "file").touch()
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    await attack.run("")
    assert stat.S_IMODE(planted.stat().st_mode) == 0o755
    assert (planted / "file").exists()
    shutil.rmtree(planted)


async def test_a_planted_link_is_not_followed(attack: Attack) -> None:
    target = attack.folder / "home"
    target.mkdir(0o755)
    (target / "file").touch()
    planted = attack.folder / "temporary" / "spass-edit-1-planted"
    planted.parent.mkdir()
    planted.symlink_to(target)
    await attack.run("")
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert (target / "file").exists()
    planted.unlink()


@pytest.mark.parametrize("write", ["open(str(number), 'wb').close()", "os.mkdir(str(number))"])
async def test_a_child_with_too_many_empty_files_is_stopped(attack: Attack, write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.tools.editor.aider.MAX_FILES", 300)  # a slow disk takes seconds for 10,000
    with pytest.raises(ToolError, match="wrote too many files") as caught:
        await attack.run(f"for number in range(10**7):\n    {write}; time.sleep(0.0005)")
    assert caught.value.code == "edit_failed"


async def test_the_child_that_takes_the_most_of_a_nearly_full_disk_is_stopped(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=2**40, free=0))
    with pytest.raises(ToolError, match="took the most room while the disk is nearly full"):
        await attack.run("open('large', 'wb').write(bytes(2**21))\ntime.sleep(60)")
    await attack.run("open('small', 'wb').write(bytes(2**15))\ntime.sleep(1)")


async def test_an_editor_that_cannot_start_fails_the_edit(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("spass.sandbox.child_process.subprocess.Popen", raise_no_memory)
        with pytest.raises(ToolError, match="could not be started: Cannot allocate memory") as caught:
            await attack.run("")
        assert caught.value.code == "edit_failed"
        patch.setattr("spass.sandbox.scratch_folder.tempfile.mkdtemp", raise_no_space)
        with pytest.raises(ToolError, match="no folder to work in: No space left on device"):
            await attack.run("")
    await attack.run("")


def raise_no_memory(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def raise_no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
