"""Which smaller quantization of a model would fit, by name."""

import re
from collections.abc import Sequence

from edgechat.library.catalog import BITS
from edgechat.library.inspect import quantization
from edgechat.library.ladder import Plan
from edgechat.units import bytes_text
from models.gguf import GGUFHeader

NAMES = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")


def smaller_quantization(parts: Sequence[GGUFHeader], plan: Plan) -> str:
    """The best one that would fit with the plan's settings, such as "q4_k_m (about 2.1 GB)"; "" for none.

    Args:
        parts: the headers of the model's files.
        plan: one that doesn't fit.
    """
    weights = sum(tensor.n_elements for part in parts for tensor in part.tensors)
    now = sum(tensor.n_bytes for part in parts for tensor in part.tensors)
    rest = plan.needs.held + plan.needs.cold - plan.needs.weights - plan.needs.repacked
    own = re.match(r"I?Q(\d)", quantization(parts[0], []))  # "Q4_K - Medium"
    for name in NAMES:
        if own is not None and name[1] >= own[1]:
            continue  # by its bytes it may be smaller: small models have large tables in more bits
        size = int(weights * BITS[name] / 8)
        if size < now * 0.95 and rest + size <= plan.available.room:
            return f"{name} (about {bytes_text(size)})"
    return ""
