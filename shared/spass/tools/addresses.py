"""Tell public addresses from all others, whatever form they have.

The networks are multicast, a cloud's own services, and networks that are not globally reachable by IANA's registries
(https://www.iana.org/assignments/iana-ipv4-special-registry and https://www.iana.org/assignments/iana-ipv6-special-registry).
``ipaddress.is_global`` differs between versions of Python, and it takes multicast, 6to4 and NAT64 addresses for global ones.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_NOT_PUBLIC: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # shared by the customers of a provider
            "127.0.0.0/8",
            "168.63.129.16/32",  # services of a machine's host in Azure
            "169.254.0.0/16",  # link-local, with the metadata of cloud machines
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocols of the IETF
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_PUBLIC_6: Final = IPv6Network("2000::/3")  # all that IANA has given out
_NOT_PUBLIC_6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocols of the IETF
            "2001:db8::/32",  # documentation
            "3ffe::/16",  # the 6bone, given back
            "3fff::/20",  # documentation
        ),
    )
)
_TEREDO: Final = IPv6Network("2001::/32")
_6TO4: Final = IPv6Network("2002::/16")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_TRANSLATED: Final = (_TEREDO, _6TO4, _NAT64, _MAPPED)
_ISATAP: Final = (0x00005EFE, 0x02005EFE)  # the first half of the interface's id (RFC 5214)
_32_BITS: Final = 0xFFFFFFFF


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether anyone on the internet can reach ``address``.

    An IPv6 address that contains IPv4 addresses is public if all of these are: packets to it end at them.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC)
    if address.scope_id is not None:
        return False
    if not all(map(is_public, _embedded_addresses(address))):
        return False
    if any(address in network for network in _TRANSLATED):
        return True
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _embedded_addresses(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses in ``address``: one in a mapped, NAT64 (RFC 6052), 6to4 (RFC 3056) or ISATAP address; the server
    and the client in a Teredo address (RFC 4380)."""
    value = int(address)
    if address in _MAPPED or address in _NAT64:
        yield IPv4Address(value & _32_BITS)
    elif address in _6TO4:
        yield IPv4Address(value >> 80 & _32_BITS)
    elif address in _TEREDO:
        yield IPv4Address(value >> 64 & _32_BITS)
        yield IPv4Address(~value & _32_BITS)
    if value >> 32 & _32_BITS in _ISATAP:
        yield IPv4Address(value & _32_BITS)
