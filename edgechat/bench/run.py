"""All measurements, one after the other."""

import os
import time
from collections.abc import Sequence

import msgspec

from edgechat import hardware
from edgechat.bench import memory, prefix, speculation, speed, verify, window
from edgechat.bench.asking import engine
from edgechat.bench.plan import Plan
from edgechat.bench.results import Part, Report


def busy_warning() -> str | None:
    """What to say of a machine on which others compute; None where it is at rest, or doesn't tell."""
    if not hasattr(os, "getloadavg"):
        return None
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores / 2:
        return None
    return (
        f"the machine is busy (load {load:.1f} on {cores} cores): figures will be too low, "
        "and ratios uncertain; measure again when it is at rest"
    )


async def run(plan: Plan, parts: Sequence[Part], report: Report) -> None:
    """Measure `parts`, and put each into `report` as soon as it is known.

    Raises:
        EdgechatError: a measurement failed; the report holds those before it.
    """
    started = time.monotonic()
    try:
        plan.tell("loading")
        small = msgspec.structs.replace(plan.load, n_ctx=256, n_sequences=1, draft="off")
        async with engine(small) as client:  # also brings the weights into memory
            info = client.info
            report.model, report.quantization = info.name, info.quantization
            report.size_bytes, report.backend = info.size_bytes, info.backend
            report.threads = info.n_threads
            report.warnings.extend(client.notes)
        report.adaptive_threads = plan.load.n_threads == 0 and hardware.physical_cores() > 1
        for part in Part:
            if part in parts:
                await _measure(part, plan, report)
    finally:
        report.seconds = round(time.monotonic() - started, 1)


async def _measure(part: Part, plan: Plan, report: Report) -> None:
    match part:
        case Part.DECODE:
            report.decode = await speed.measure(plan, part)
        case Part.PREFILL:
            report.prefill = await speed.measure(plan, part)
        case Part.VERIFY:
            report.verify = await verify.measure(plan)
        case Part.SPECULATION:
            report.speculation = await speculation.measure(plan)
            report.warnings.extend(report.speculation.notes)
        case Part.WINDOW:
            report.window = await window.measure(plan)
        case Part.PREFIX:
            report.prefix = await prefix.measure(plan)
        case Part.MEMORY:
            report.memory = await memory.measure(plan)
