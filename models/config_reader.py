"""Takes numbers out of a config.json that strangers wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import BrokenModelFile


class Reader:
    """A config's values, each checked when it is asked for."""

    def __init__(self, raw: Mapping[str, Any], where: Path) -> None:
        self.raw = raw
        self.where = where

    def broken(self, what: str) -> BrokenModelFile:
        """The error for a config that says `what`."""
        return BrokenModelFile(f"{self.where}: {what}")

    def integer(self, key: str, limit: int, default: int | None = None) -> int:
        """A whole number from 1 to `limit`.

        Raises:
            BrokenModelFile: missing without a default, of another type, or out of range.
        """
        value = self.raw.get(key, default)
        if value is None:
            raise self.broken(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self.broken(f"{key} is {value!r}: a whole number from 1 to {limit} belongs there")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number over `low` up to `high`.

        Raises:
            BrokenModelFile: missing without a default, of another type, or out of range.
        """
        value = self.raw.get(key, default)
        if value is None:
            raise self.broken(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
            raise self.broken(f"{key} is {value!r}: a number over {low:g} up to {high:g} belongs there")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A positive number, or None where the config is silent."""
        return self.number(key, 0.0, 1e9) if self.raw.get(key) is not None else None

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers.

        Raises:
            BrokenModelFile: missing, of another length, or not all are positive numbers.
        """
        values = self.raw.get(key)
        if not isinstance(values, list | tuple) or len(values) != count:
            what = f"{len(values)} entries" if isinstance(values, list | tuple) else repr(values)
            raise self.broken(f"{key} has {what}: a list of {count} numbers belongs there")
        entries = Reader({f"{key}, entry {i},": value for i, value in enumerate(values)}, self.where)
        return tuple(entries.number(name, 0.0, 1e9) for name in entries.raw)
