import pytest

from edgechat.units import bytes_text, count_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (25_276_502_016, "25.3 GB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (134_515_008, "135M"),
        (630_167_424, "630M"),
        (1_235_814_400, "1.24B"),
        (8_030_261_248, "8.03B"),
        (999_600, "1M"),
    ],
)
def test_counts(count: int, text: str) -> None:
    assert count_text(count) == text
