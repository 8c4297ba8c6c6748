"""URLs that nothing may be connected for, and an oracle of public addresses that shares no code with the gateway's."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_CIRCLED: Final = "⓪①②③④⑤⑥⑦⑧⑨"
_PRIVATE_4: Final = (
    *("127.0.0.1", "127.255.255.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "0.0.0.0"),
    *(
        "169.254.169.254",
        "169.254.170.2",
        "100.64.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.7",
    ),
    *("203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.88.99.1", "168.63.129.16"),
)
_PRIVATE_6: Final = (
    *("::1", "::", "fe80::1", "fe80::1%25eth0", "fe80::1%25lo", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "fec0::1"),
    *(
        "2001:db8::1",
        "3fff::1",
        "3ffe::1",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1::808:808",
        "100::1",
        "5f00::1",
        "2001:10::1",
        "2001:20::1",
    ),
    *("0:0:0:0:0:0:0:1", "::0001", "4000::1", "2001:1::1", "1::"),
)
_SCHEMES: Final = (
    *(
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "data:text/html,<p>x",
        "javascript:alert(1)",
        "ftp://public.example/x",
    ),
    *(
        "gopher://public.example/x",
        "ws://public.example/",
        "wss://public.example/",
        "dict://public.example/",
        "ldap://public.example/",
    ),
    *(
        "jar:http://public.example!/x",
        "view-source:http://public.example",
        "http:/public.example",
        "http:public.example",
        "//public.example",
    ),
    *(
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
        "unix:/var/run/docker.sock",
        "mailto:me@public.example",
        "about:blank",
        "",
        "http://",
        "x",
    ),
)
_PORTS: Final = (
    "22",
    "25",
    "0",
    "21",
    "81",
    "444",
    "3306",
    "6379",
    "8080",
    "8443",
    "9200",
    "65535",
    "65536",
    "-80",
    "80x",
)
_NAMES: Final = (
    *("localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "metadata", "metadata.google.internal", "instance-data"),
    *(
        "printer.local",
        "router.lan",
        "kubernetes.default.svc",
        "db.internal",
        "a..b",
        ".public.example",
        "public..example",
        "-a-.x",
    ),
    *(
        "public.example..",
        "pub lic.example",
        "public%2eexample",
        "127%2e0%2e0%2e1",
        "public.example\x00.evil",
        "public.example\\@127.0.0.1",
    ),
    *(
        "[::1",
        "::1",
        "[public.example]",
        "[127.0.0.1]",
        "[v1.x]",
        "a" * 64 + ".example",
        "a." * 127 + "example",
        "xn--\x7f",
        "*.example",
    ),
    *(
        "public.example%00",
        "public.example%0d%0aHost: x",
        "public.example\r\nHost: x",
        "１２７.０.０.１",
        "127。0。0。1",
        "0。0。0。0",
        "ｌocalhost",
    ),
)

RESOLUTIONS: Final[Mapping[str, Sequence[str]]] = {
    "two.example": ("93.184.216.34", "127.0.0.1"),
    "three.example": ("93.184.216.34", "2606:2800:220:1::1", "fe80::1%eth0"),
    "last.example": (*["93.184.216.34"] * 40, "10.0.0.1"),
    "none.example": (),
    **{f"private-{number}.example": (address,) for number, address in enumerate(_PRIVATE_4)},
    **{f"private6-{number}.example": (address.replace("%25", "%"),) for number, address in enumerate(_PRIVATE_6)},
}
"""Names, with addresses of which at least one is not public."""


def hostile_urls() -> Iterator[str]:
    """Yield all URLs. Names that ``RESOLUTIONS`` does not have are read as ``inet_aton`` reads them."""
    for address in _PRIVATE_4:
        yield from (f"http://{host}/x" for host in _spellings(address))
        yield from (f"https://[{host}]/" for host in _embeddings(address))
    yield from (f"http://[{address}]/" for address in _PRIVATE_6)
    yield from (f"http://{name}/" for name in (*_NAMES, *RESOLUTIONS))
    yield from (f"http://public.example:{port}/" for port in _PORTS)
    yield from (f"https://{user}@public.example/" for user in ("u", "u:p", ":p", "u%40x", "127.0.0.1", "public.example:443"))
    yield from _SCHEMES
    yield "http://public.example/" + "a" * 3000


def _spellings(address: str) -> Iterator[str]:
    """Yield forms of an IPv4 address that resolvers, browsers or libraries read."""
    a, b, c, d = map(int, address.split("."))
    number = int.from_bytes(socket.inet_aton(address))
    yield from (
        address,
        f"{address}.",
        f"{number}",
        f"{number:#x}",
        f"0{number:o}",
        f"{number:#X}",
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
    )
    yield from (
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"{a}.{(b << 16) + (c << 8) + d}",
        f"{a}.{b}.{(c << 8) + d}",
        f"{a:04d}.{b}.{c}.{d}",
    )
    yield from (
        f"{a:#x}.{b}.0{c:o}.{d}",
        f"public.example@{address}",
        f"{address}:80",
        address.replace(".", "%2e"),
        address.replace(".", "。"),
    )
    yield "".join(_CIRCLED[int(sign)] if sign.isdigit() else sign for sign in address)


def _embeddings(address: str) -> Iterator[str]:
    """Yield IPv6 addresses that contain an IPv4 address."""
    packed = socket.inet_aton(address)
    high, low = packed[:2].hex(), packed[2:].hex()
    flipped = bytes(255 - byte for byte in packed)
    yield from (
        f"::ffff:{address}",
        f"::ffff:{high}:{low}",
        f"0:0:0:0:0:ffff:{high}:{low}",
        f"::{address}",
        f"64:ff9b::{high}:{low}",
    )
    yield from (f"64:ff9b::{address}", f"2002:{high}:{low}::1", f"2001:0:{high}:{low}:0:0:f7f7:f7f7")
    yield from (
        f"2001:0:808:808:0:0:{flipped[:2].hex()}:{flipped[2:].hex()}",
        f"2606:2800::5efe:{high}:{low}",
        f"2606:2800::200:5efe:{high}:{low}",
    )


_NOT_PUBLIC: Final = tuple(
    (int.from_bytes(socket.inet_aton(first)), int.from_bytes(socket.inet_aton(last)))
    for first, last in (
        ("0.0.0.0", "0.255.255.255"),
        ("10.0.0.0", "10.255.255.255"),
        ("100.64.0.0", "100.127.255.255"),
        ("127.0.0.0", "127.255.255.255"),
        ("168.63.129.16", "168.63.129.16"),
        ("169.254.0.0", "169.254.255.255"),
        ("172.16.0.0", "172.31.255.255"),
        ("192.0.0.0", "192.0.0.255"),
        ("192.0.2.0", "192.0.2.255"),
        ("192.88.99.0", "192.88.99.255"),
        ("192.168.0.0", "192.168.255.255"),
        ("198.18.0.0", "198.19.255.255"),
        ("198.51.100.0", "198.51.100.255"),
        ("203.0.113.0", "203.0.113.255"),
        ("224.0.0.0", "255.255.255.255"),
    )
)


def is_public_by_bytes(packed: bytes) -> bool:
    """Return whether an address of 4 or 16 bytes is public, from the bytes alone."""
    if len(packed) == 4:
        return not any(first <= int.from_bytes(packed) <= last for first, last in _NOT_PUBLIC)
    words = [packed[at : at + 2].hex() for at in range(0, 16, 2)]
    if words[:6] in (["0000"] * 5 + ["ffff"], ["0064", "ff9b"] + ["0000"] * 4):
        return is_public_by_bytes(packed[12:])
    if packed[0] >> 5 != 1:
        return False
    if words[4:6] in (["0000", "5efe"], ["0200", "5efe"]) and not is_public_by_bytes(packed[12:]):
        return False
    if words[0] == "2002":
        return is_public_by_bytes(packed[2:6])
    if words[:2] == ["2001", "0000"]:
        return is_public_by_bytes(packed[4:8]) and is_public_by_bytes(bytes(255 - byte for byte in packed[12:]))
    if words[0] == "2001" and (packed[2] < 2 or words[1] == "0db8"):
        return False
    return words[0] != "3ffe" and not (words[0] == "3fff" and packed[2] < 16)
