"""How sizes are said, and what they leave for the weights."""

import pytest

from quantize.budget import Budget, bpw_budget, size_budget
from quantize.errors import BadRequest


def test_amounts_as_people_write_them() -> None:
    """Decimal, or binary where they say so."""
    expected = {
        "4GB": 4_000_000_000,
        "4g": 4_000_000_000,
        " 700 MB ": 700_000_000,
        "3.5GiB": 3_758_096_384,
        "1kib": 1024,
        "0.5tb": 500_000_000_000,
        "1234567": 1_234_567,
        "1234567B": 1_234_567,
    }
    assert {text: size_budget(text).n_bytes for text in expected} == expected


@pytest.mark.parametrize(
    "text", ["", "GB", "four", "-4GB", "0", "0.0001kB", "nanGB", "infGB", "4XB", "4 4GB"]
)
def test_what_is_no_amount(text: str) -> None:
    """Is refused with an example."""
    with pytest.raises(BadRequest, match="an amount such as 4GB or 700MB belongs there"):
        size_budget(text)


def test_a_size_without_its_unit() -> None:
    """Is asked for, not taken for bytes."""
    with pytest.raises(BadRequest, match="--target-size 4 lacks a unit: give 4GB"):
        size_budget("4")
    with pytest.raises(BadRequest, match="give 700MB"):
        size_budget("700")


@pytest.mark.parametrize("bits", [0.0, -1.0, 33.0, float("nan"), float("inf")])
def test_what_are_no_bits(bits: float) -> None:
    """Is refused."""
    with pytest.raises(BadRequest, match=r"bits per weight such as 4\.5"):
        bpw_budget(bits)
    with pytest.raises(BadRequest, match="give one of both"):
        Budget()


def test_names() -> None:
    """For a file: as short as it is exact."""
    texts = ["4GB", "3.5GiB", "91200kB", "1234567", "700MB", "98.5MB", "1500B"]
    assert [size_budget(text).label for text in texts] == [
        "4GB", "3.5GiB", "91.2MB", "1234567B", "700MB", "98.5MB", "1.5kB",
    ]  # fmt: skip
    texts = ["100TB", "1.5TiB", "1000GB", "1234567890", "12345678.9kB", "999.99TB"]
    assert [size_budget(text).label for text in texts] == [
        "100TB", "1.5TiB", "1TB", "1234567.89kB", "12345678.9kB", "999.99TB",
    ]  # fmt: skip
    assert bpw_budget(4.5).label == "4.5bpw"
    assert size_budget("4GB").target.label == "4GB"


def test_room() -> None:
    """Of a file the header goes off, and all is padded to 32 bytes; bits count the weights alone."""
    size, bits = size_budget("10kB"), bpw_budget(4.5)
    assert (size.room(1001, 5), size.taken(33), size.taken(64)) == (10_000 - 1024, 64, 64)
    assert (bits.room(1001, 1000), bits.taken(33)) == (562, 33)
    assert size.shown(1000, 1001, 5) == "2.02 kB (2024 bytes)"
    assert bits.shown(563, 1001, 1000) == "4.51 bits per weight"  # rounded up: it must be possible
