"""Where nothing of ours connects to."""

from __future__ import annotations

import pytest

from streaming.addresses import is_literal_and_refused, is_refused


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("169.254.169.254", True), ("fe80::1", True), ("fe80::1%eth0", True), ("fd00:ec2::254", True),
        ("100.100.100.200", True), ("::ffff:169.254.169.254", True),
        ("127.0.0.1", False), ("10.0.0.1", False), ("203.0.113.7", False), ("fd00::1", False),
    ],
)  # fmt: skip
def test_metadata_addresses_are_refused(address: str, refused: bool) -> None:
    assert is_refused(address) is refused


def test_names_are_not_literals() -> None:
    assert not is_literal_and_refused("metadata.example")
    assert is_literal_and_refused("169.254.169.254")
