"""An address is public if an oracle over its bytes says so, in every version of Python."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spass.tools.addresses import is_public
from tests.hostile_urls import is_public_by_bytes

STARTS = (
    *("20010000", "20010db8", "200100", "200101ff", "20010200", "2002", "2002 0808", "2002 c0a8", "0064ff9b" + "00" * 8, "2606"),
    *("00" * 10 + "ffff", "00" * 12, "fe80", "fc00", "ff02", "3fff0", "3fff1", "3ffe", "0064ff9b0001", "5f00", "00" * 15, ""),
    *(
        "26062800" + "00" * 4 + "00005efe",
        "26062800" + "00" * 4 + "02005efe0808",
        "20010db8" + "00" * 4 + "00005efe08",
        "2001000008080808" + "00" * 4,
    ),
)
EDGES = (
    *(
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
    ),
    *(
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
    ),
    *(
        "198.20.0.0",
        "223.255.255.255",
        "8.8.8.8",
        "1.1.1.1",
        "168.63.129.15",
        "192.88.98.255",
        "2606:4700::1111",
        "2002:808:808::1",
    ),
    *(
        "64:ff9b::808:808",
        "::ffff:8.8.8.8",
        "2001:0:808:808::f7f7:f7f7",
        "2001:200::1",
        "3fff:1000::1",
        "2a00::1",
        "2606::5efe:808:808",
    ),
)
WITH_START = st.tuples(st.sampled_from(STARTS), st.binary(min_size=16, max_size=16)).map(
    lambda pair: bytes.fromhex((pair[0].replace(" ", "") + pair[1].hex())[:32])
)


@given(packed=st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16) | WITH_START)
@example(packed=bytes(16))
@example(packed=b"\xff" * 16)
def test_it_agrees_with_the_oracle(packed: bytes) -> None:
    address = IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
    assert is_public(address) == is_public_by_bytes(packed), str(address)


@pytest.mark.parametrize("address", EDGES)
def test_the_neighbours_of_private_networks_are_public(address: str) -> None:
    assert is_public(ip_address(address))
    assert is_public_by_bytes(ip_address(address).packed)


def test_an_address_of_one_link_is_not_public() -> None:
    assert not is_public(IPv6Address("2606:4700::1111%eth0"))
