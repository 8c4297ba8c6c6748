"""Attacks that reach for a network: every family, every way in."""

from typing import Final

from tests.unit.sandbox.attacks.attack import Attack

NETWORK: Final = (
    Attack(
        "a TCP connection over IPv4",
        """
import socket
with socket.create_connection(("127.0.0.1", W["tcp"]), 2) as connection:
    connection.sendall(b"secrets")
""",
    ),
    Attack(
        "a TCP connection over IPv6",
        """
import socket
connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
gain("a socket")
connection.connect(("::1", W["tcp6"]))
""",
    ),
    Attack(
        "a datagram over UDP",
        """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"secrets", ("127.0.0.1", W["udp"]))
""",
    ),
    Attack(
        "a Unix socket in the file system",
        """
import socket
socket.socket(socket.AF_UNIX).connect(W["unix"])
""",
    ),
    Attack(
        "a datagram to a Unix socket",
        """
import socket
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"secrets", W["unix_datagram"])
""",
    ),
    Attack(
        "an abstract Unix socket",
        """
import socket
socket.socket(socket.AF_UNIX).connect("\\0" + W["abstract"])
""",
    ),
    Attack(
        "a pair of sockets",
        """
import socket
attempt("socketpair", socket.socketpair)
""",
    ),
    Attack(
        "a server",
        """
import socket
attempt("listen", lambda: socket.create_server(("127.0.0.1", 0)))
""",
    ),
    Attack(
        "a raw socket",
        """
import socket
attempt("ICMP", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
""",
        "as root",
    ),
    Attack(
        "a packet socket",
        """
import socket
attempt("Ethernet", lambda: socket.socket(17, socket.SOCK_RAW, 3))
""",
        "as root",
    ),
    Attack(
        "the list of network interfaces",
        """
import socket
attempt("interfaces", socket.if_nameindex)
attempt("netlink", lambda: socket.socket(16, socket.SOCK_RAW, 0))
""",
    ),
    Attack(
        "sockets of every family by number",
        """
for family in range(48):
    for kind in (1, 2, 3, 5, 10):
        if (result := call("socket", family, kind, 0)) >= 0:
            gain(f"socket of family {family}, type {kind}")
            os.close(result)
""",
    ),
    Attack(
        "pairs of sockets of every kind by number",
        """
pair = ctypes.create_string_buffer(8)
for kind in (1, 2, 5):
    try_call("socketpair", 1, kind, 0, pair)
""",
    ),
    Attack(
        "the name service",
        """
import socket
attempt("localhost", lambda: socket.getaddrinfo("localhost", 80))
attempt("example.com", lambda: socket.gethostbyname("example.invalid"))
""",
    ),
    Attack(
        "a name service of the network, asked directly",
        """
import socket
query = b"\\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x07secrets\\x07example\\x00\\x00\\x01\\x00\\x01"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, ("127.0.0.1", W["udp"]))
""",
    ),
    Attack(
        "a request over HTTP",
        """
import urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{W['tcp']}/secrets", timeout=0.2)
""",
    ),
    Attack(
        "a connection of an event loop",
        """
import asyncio
async def connect():
    await asyncio.open_connection("127.0.0.1", W["tcp"])
asyncio.run(connect())
""",
    ),
    Attack(
        "the interface of the Lambda runtime",
        """
import http.client
host, _, port = (os.environ.get("AWS_LAMBDA_RUNTIME_API") or W["runtime_api"]).partition(":")
connection = http.client.HTTPConnection(host, int(port), timeout=0.2)
connection.request("GET", "/2018-06-01/runtime/invocation/next")
connection.getresponse()
""",
    ),
    Attack(
        "the metadata service of the cloud",
        """
import socket
for address in ("169.254.169.254", "169.254.170.2", "fd00:ec2::254"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    gain("a socket")
    connection.settimeout(0.05)
    connection.connect_ex((address, 80))
""",
        "never",
    ),
    Attack(
        "a socket by machine code",
        """
code = b"\\xb8\\x29\\0\\0\\0\\xbf\\x02\\0\\0\\0\\xbe\\x01\\0\\0\\0\\x31\\xd2\\x0f\\x05\\xc3"  # socket(AF_INET, SOCK_STREAM, 0)
page = mmap.mmap(-1, 4096, prot=7)
page.write(code)
result = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
if result >= 0:
    gain(f"socket {result}")
""",
        "always",
    ),
    Attack("io_uring", 'try_call("io_uring_setup", 8, ctypes.create_string_buffer(120))', "never"),
)
