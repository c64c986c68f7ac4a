"""Examines the machine: each check is a function that returns a finding, and none of them raises."""

from edgechat.doctor.checks import examine
from edgechat.doctor.findings import Finding, Report, Severity, exit_code

__all__ = ["Finding", "Report", "Severity", "examine", "exit_code"]
