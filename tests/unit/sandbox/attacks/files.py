"""Attacks that reach for files outside the scratch folder: to read, to change, to watch."""

from typing import Final

from tests.unit.sandbox.attacks.attack import Attack

READS: Final = (
    Attack("a secret file", 'attempt("read", lambda: read(W["secret_file"]))'),
    Attack("a secret file by a relative path", 'attempt("read", lambda: read(os.path.relpath(W["secret_file"])))'),
    Attack(
        "a secret file, opened in every mode",
        """
for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_NOFOLLOW, os.O_RDONLY | os.O_NONBLOCK | os.O_SYNC):
    attempt(f"open {flags}", lambda: os.open(W["secret_file"], flags))
""",
    ),
    Attack(
        "a secret file, opened neither to read nor to write",
        """
for flags in (3, 3 | os.O_CLOEXEC, 3 | os.O_NONBLOCK | os.O_NOFOLLOW, 3 | os.O_APPEND):
    attempt(f"open {flags}", lambda: os.open(W["secret_file"], flags))
""",
    ),
    Attack("a descriptor that only names a file", 'attempt("open", lambda: os.open(W["secret_file"], os.O_PATH))'),
    Attack(
        "a secret file through a descriptor that only names it",
        """
descriptor = os.open(W["secret_file"], os.O_PATH)
read(f"/proc/self/fd/{descriptor}")
""",
    ),
    Attack(
        "a secret file through a symbolic link",
        """
attempt("symlink", lambda: os.symlink(W["secret_file"], "link"))
attempt("read", lambda: read("link"))
""",
    ),
    Attack(
        "a secret file through a hard link",
        """
attempt("link", lambda: os.link(W["secret_file"], "link"))
attempt("read", lambda: read("link"))
""",
    ),
    Attack(
        "a secret file, moved to the scratch folder",
        """
attempt("move", lambda: os.rename(W["secret_file"], "moved"))
attempt("read", lambda: read("moved"))
""",
    ),
    Attack(
        "the lists of folders",
        """
for path in ("/", "..", W["folder"], "/tmp", "/home", "/root", "/proc", "/etc", "/dev", "/usr/lib"):
    attempt(f"list {path}", lambda: os.listdir(path))
""",
    ),
    Attack(
        "the accounts of the machine",
        """
for path in ("/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/resolv.conf", "/etc/machine-id", "/etc/hosts"):
    attempt(path, lambda: read(path))
""",
    ),
    Attack(
        "the descriptions of processes",
        """
for process in ("self", "thread-self", "1", os.getpid(), W["parent"], W["victim"]):
    for name in ("environ", "mem", "maps", "cmdline", "status", "stat", "cgroup", "mountinfo", "net/tcp", "fdinfo/0"):
        attempt(f"{process}/{name}", lambda: os.open(f"/proc/{process}/{name}", os.O_RDONLY))
    attempt(f"{process}/fd", lambda: os.listdir(f"/proc/{process}/fd"))
""",
    ),
    Attack(
        "the working folder of the parent",
        """
for name in ("cwd", "root", "exe", f"fd/{W['secret_descriptor']}"):
    attempt(name, lambda: os.readlink(f"/proc/{W['parent']}/{name}"))
    attempt(name, lambda: os.open(f"/proc/{W['parent']}/{name}", os.O_RDONLY))
""",
    ),
    Attack(
        "devices and the kernel's settings",
        """
paths = ("/dev/mem", "/dev/kmsg", "/dev/tty", "/dev/ptmx", "/dev/zero", "/dev/full", "/dev/fuse", "/dev/kvm", "/dev/random")
for path in (*paths, "/sys/kernel/uevent_seqnum", "/sys/class/net", "/proc/sys/kernel/hostname", "/proc/kmsg"):
    attempt(path, lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
""",
    ),
    Attack(
        "the installed packages and the source of the gateway",
        """
for folder in (W["packages"], W["library"]):
    attempt(folder, lambda: os.listdir(folder))
    attempt(folder, lambda: read(f"{folder}/__init__.py"))
attempt("a package", lambda: read(W["package_file"]))
""",
    ),
    Attack(
        "what another user's code left",
        """
attempt("its folder", lambda: os.listdir(W["leftover"]))
attempt("its file", lambda: read(W["leftover"] + "/notes.txt"))
""",
    ),
    Attack(
        "the shared memory of the machine",
        """
attempt("read", lambda: read("/dev/shm/" + W["shared_file"]))
attempt("create", lambda: os.close(os.open(f"/dev/shm/{W['shared_file']}-attack", os.O_RDWR | os.O_CREAT)))
""",
    ),
    Attack(
        "a file by its handle",
        """
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.create_string_buffer(4)
if call("name_to_handle_at", -100, W["secret_file"].encode(), handle, mount, 0) >= 0:
    gain("a handle")
    descriptor = call("open_by_handle_at", os.open(W["folder"], os.O_RDONLY), handle, os.O_RDONLY)
    gain(os.read(descriptor, 100))
""",
    ),
    Attack(
        "a file by openat2",
        """
how = ctypes.create_string_buffer(struct.pack("QQQ", 0, 0, 0))
if (descriptor := try_call("openat2", -100, W["secret_file"].encode(), how, 24)) >= 0:
    gain(os.read(descriptor, 100))
""",
    ),
)

CHANGES: Final = (
    Attack("a changed file", 'attempt("write", lambda: open(W["canary"], "a").write("x"))'),
    Attack("a new file beside others", 'attempt("create", lambda: open(W["folder"] + "/made", "x"))'),
    Attack(
        "new files elsewhere",
        """
for folder in ("/tmp", "/var/tmp", "/dev/shm", "/", os.path.dirname(os.__file__), os.path.expanduser("~")):
    path = f"{folder}/{W['shared_file']}-made"
    attempt(path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)))
    attempt(path, lambda: os.unlink(path))
""",
    ),
    Attack("a new folder", 'attempt("mkdir", lambda: os.mkdir(W["folder"] + "/made"))'),
    Attack("a removed file", 'attempt("unlink", lambda: os.unlink(W["canary"]))'),
    Attack("a removed folder", 'attempt("rmdir", lambda: os.rmdir(W["empty_folder"]))'),
    Attack("a renamed file", 'attempt("rename", lambda: os.rename(W["canary"], W["folder"] + "/made"))'),
    Attack(
        "a file replaced by one of the scratch folder",
        """
open("mine", "w").write("x")
attempt("rename", lambda: os.replace("mine", W["canary"]))
""",
    ),
    Attack("a shortened file", 'attempt("truncate", lambda: os.truncate(W["canary"], 0))'),
    Attack(
        "a file emptied by opening it to read",
        """
open("mine", "w").write("x")
os.close(os.open("mine", os.O_RDONLY | os.O_TRUNC))
if os.path.getsize("mine") == 0:
    gain("an emptied file")
""",
    ),
    Attack(
        "a file emptied by opening it neither to read nor to write",
        'attempt("empty", lambda: os.close(os.open(W["canary"], 3 | os.O_TRUNC)))',
    ),
    Attack("a changed mode", 'os.chmod(W["canary"], 0o777)'),
    Attack(
        "a changed mode by number",
        """
path = W["canary"].encode()
for name, arguments in (("chmod", (path, 0o777)), ("fchmodat", (-100, path, 0o777)), ("fchmodat2", (-100, path, 0o777, 0))):
    call(name, *arguments)
""",
    ),
    Attack(
        "a changed mode of an open file",
        """
with open("mine", "w") as file:
    os.fchmod(file.fileno(), 0o604)
    if os.fstat(file.fileno()).st_mode & 0o777 == 0o604:
        gain("a mode")
""",
    ),
    Attack("a changed time", 'os.utime(W["canary"], (0, 0))'),
    Attack("a changed owner", 'attempt("chown", lambda: os.chown(W["canary"], os.getuid(), os.getgid()))'),
    Attack("an extended attribute", 'attempt("setxattr", lambda: os.setxattr(W["canary"], "user.attack", b"1"))', "never"),
    Attack("the attributes of a file", 'attempt("attributes", lambda: os.listxattr(W["secret_file"]))'),
    Attack(
        "a file that sends signals",
        'attempt("O_ASYNC", lambda: os.open(os.devnull, os.O_RDWR | os.O_ASYNC))',
    ),
    Attack(
        "a command to a device",
        """
import errno, fcntl
try:
    fcntl.ioctl(os.open(os.devnull, os.O_RDONLY), 0x1268)
except OSError as error:
    if error.errno not in (errno.EPERM, errno.EACCES):
        gain(f"the device answered {error}")
""",
    ),
    Attack("a symbolic link", 'attempt("symlink", lambda: os.symlink("/", "link"))'),
    Attack("a pipe with a name", 'attempt("mkfifo", lambda: os.mkfifo("pipe"))'),
    Attack("a device", 'attempt("mknod", lambda: os.mknod("disk", 0o600 | 0o060000, os.makedev(254, 0)))', "as root"),
    Attack("a character device", 'attempt("mknod", lambda: os.mknod("null", 0o600 | 0o020000, os.makedev(1, 3)))', "as root"),
    Attack(
        "a Unix socket of its own",
        """
import socket
attempt("bind", lambda: socket.socket(socket.AF_UNIX).bind("own.sock"))
""",
    ),
    Attack("a file without a name", 'attempt("O_TMPFILE", lambda: os.open(".", os.O_TMPFILE | os.O_RDWR))', "never"),
    Attack(
        "a watch on others' files",
        """
if (descriptor := try_call("inotify_init1", 0)) >= 0:
    try_call("inotify_add_watch", descriptor, W["folder"].encode(), 0xFFF)
""",
    ),
    Attack("a watch on all files", 'try_call("fanotify_init", 0, 0)', "never"),
    Attack("another root", 'attempt("chroot", lambda: os.chroot("."))', "as root"),
    Attack(
        "mounts",
        """
try_call("unshare", 0x10000000 | 0x20000)
try_call("mount", b"none", os.getcwd().encode(), b"tmpfs", 0, None)
try_call("open_tree", -100, b"/", 1)
try_call("fsopen", b"tmpfs", 0)
""",
        "as root",
    ),
)

FILES: Final = READS + CHANGES
