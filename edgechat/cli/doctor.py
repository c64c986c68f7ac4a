"""`edgechat doctor`: what this machine can do, and what is amiss."""

import typer

from edgechat.cli.options import AsJsonOption
from edgechat.cli.output import json_object, one_line
from edgechat.cli.tables import pairs

app = typer.Typer(help="Say what this machine can do, and what is amiss.")


@app.command()
def doctor(as_json: AsJsonOption = False) -> None:
    """Look at Python, llama.cpp, CPU, memory, GPUs, disk, terminal, starter model and settings.

    Exit code 0: edgechat works here, though there may be warnings. 5: not enough memory or disk.
    6: something that edgechat needs is missing or broken.
    """
    from edgechat.doctor import Severity, examine, exit_code

    report = examine()
    if as_json:
        json_object({"healthy": report.healthy, "findings": report.findings})
    else:
        pairs([(finding.topic, finding.found) for finding in report.findings])
        for finding in report.findings:
            if finding.severity is not Severity.OK:
                print(one_line(f"{finding.severity}: {finding.problem}. Remedy: {finding.remedy}"))
        if all(finding.severity is Severity.OK for finding in report.findings):
            print("All is well.")
    code = exit_code(report.findings)
    if code:
        raise typer.Exit(int(code))
