"""Machines and texts that a controller is tried on."""

import random
from collections.abc import Callable

from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.controller import Controller
from edgechat.engine.speculation.cost import CostTable, StepCost
from tests.oracles.speculation import V_0_5B, V_1_5B, filled

V15, V05 = filled(V_1_5B), filled(V_0_5B)


def controller(v: list[float], wrong: float = 1.0) -> Controller:
    """`wrong`: the table has so much less than the truth for all widths above 1."""
    seconds = tuple(0.05 * x / (wrong if k > 1 else 1.0) for k, x in enumerate(v) if k)
    return Controller(StepCost(CostTable(tuple(range(1, len(v))), seconds)), Calibration())


def iid(a: float, seed: int) -> Callable[[int, int, int], bool]:
    """Each draft is right with probability `a`; what would have been is what is."""

    def stands(position: int, place: int, k: int) -> bool:
        return random.Random(hash((seed, position, place))).random() < a

    return stands


def adversaries() -> dict[str, Callable[[int, int, int], bool]]:
    rng = random.Random(0)
    runs: dict[int, bool] = {}

    def whims(position: int, place: int, k: int) -> bool:
        if position // 40 not in runs:
            runs[position // 40] = rng.random() < 0.5
        return runs[position // 40]

    return {
        "never": lambda position, place, k: False,
        "only where nobody looks": lambda position, place, k: k == 0,
        "short drafts only": lambda position, place, k: k <= 1,
        "collapses after a success": lambda position, place, k: position % 50 == 0,
        "builds trust, then breaks it": lambda position, place, k: position % 300 < 60,
        "all but what would pay": lambda position, place, k: place + 1 < max(k // 2, 1),
        "whims": whims,
        "flips at random": lambda position, place, k: rng.random() < 0.4,
    }
