"""What an examination finds."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from edgechat.errors import ExitCode


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """edgechat works, but not as well as it could."""
    SHORT = "short"
    """Too little memory or disk."""
    FAULT = "fault"
    """edgechat can't do its work."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    topic: str
    found: str
    """What is there, in one line."""
    severity: Severity = Severity.OK
    problem: str = ""
    remedy: str = ""
    """What to do, with a command to paste where there is one."""
    data: dict[str, Any] = {}
    """The figures, for programs."""


class Report(msgspec.Struct, frozen=True):
    """An examination."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """edgechat works here."""
        return exit_code(self.findings) == ExitCode.DONE


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """What to tell the shell: warnings are no failure."""
    severities = {finding.severity for finding in findings}
    if Severity.FAULT in severities:
        return ExitCode.UNSUPPORTED
    if Severity.SHORT in severities:
        return ExitCode.RESOURCES
    return ExitCode.DONE
