"""Whether drafts cost: plain decoding and `--draft auto` step by step, in turns of one step.

    python benchmarks/lockstep.py [TARGET.gguf] [--draft DRAFT.gguf] [--tokens 128] [--rounds 5]
        [--kinds KIND...] [--threads N] [--json]

Two engines in one process write the same kind of text, a step of the one, a step of the other. What else the
machine does disturbs both alike, and the ratio of their tokens per second is told to a per cent where
`speculation.py`, which times one answer after the other, is off by five. Both have read the prompt before.
The rates count all of a step: looking for drafts, deciding and learning, too.
"""

import argparse
import json
import statistics
import sys
import time

from speculation_contenders import Stage
from speculation_texts import KINDS

from edgechat import hardware
from edgechat.engine.process.messages import Delta
from edgechat.library.starter import starter_path

NAMES = ("off", "auto")


def answer(stages: tuple[Stage, Stage], kind: str, n_tokens: int) -> tuple[float, float]:
    """Tokens per second of a plain answer and of a drafted one, first tokens left out."""
    for stage, name in zip(stages, NAMES, strict=True):
        stage.begin(name, kind, n_tokens)
        while stage.engine.busy and not any(isinstance(event, Delta) for event in stage.events):
            stage.engine.step()
    seconds = [0.0, 0.0]
    while any(stage.engine.busy for stage in stages):
        for which, stage in enumerate(stages):
            if stage.engine.busy:
                started = time.perf_counter()
                stage.engine.step()
                seconds[which] += time.perf_counter() - started
    counts = [len(stage.finished().tokens) - 1 for stage in stages]
    return counts[0] / seconds[0], counts[1] / seconds[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--draft", help="a GGUF file of the same vocabulary")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--threads", type=int, default=hardware.physical_cores())
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    target = options.target or str(starter_path())
    stages = (
        Stage(target, None, options.threads, 2048),
        Stage(target, options.draft, options.threads, 2048),
    )
    stages[1].measure(0.8)
    ratios: dict[str, list[float]] = {}
    for kind in options.kinds:
        for stage in stages:
            stage.ask("off", kind, 8)  # reads the prompt
        for round_ in range(options.rounds):
            sys.stderr.write(f"\r{kind}, round {round_ + 1} of {options.rounds}: ")
            plain, drafted = answer(stages, kind, options.tokens)
            ratios.setdefault(kind, []).append(drafted / plain)
        sys.stderr.write("\r" + " " * 40 + "\r")
        if not options.json:
            low, high = min(ratios[kind]), max(ratios[kind])
            sys.stdout.write(f"{kind:6} {statistics.median(ratios[kind]):.3f}  ({low:.3f} to {high:.3f})\n")
            sys.stdout.flush()
    for stage in stages:
        stage.close()
    if options.json:
        sys.stdout.write(
            json.dumps({"target": target, "tokens": options.tokens, "auto_over_off": ratios}) + "\n"
        )


if __name__ == "__main__":
    main()
