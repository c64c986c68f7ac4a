"""Whether drafts cost: plain decoding and `--draft auto` step by step, in turns of one step.

    python benchmarks/lockstep.py [TARGET.gguf] [--draft DRAFT.gguf] [--peers off fixed-4 ...] [--tokens 128]
        [--rounds 5] [--kinds KIND...] [--threads N] [--json]

Two engines in one process write the same kind of text, a step of the one, a step of the other. What else the
machine does disturbs both alike, and the ratio of their tokens per second is told to a per cent where
`speculation.py`, which times one answer after the other, is off by five. Both have read the prompt before.
The rates count all of a step: looking for drafts, deciding and learning, too. Peers are plain decoding, off,
and fixed numbers of drafts from words.
"""

import argparse
import json
import statistics
import sys
import time

from speculation_contenders import LENGTHS, Stage
from speculation_texts import KINDS

from edgechat import hardware
from edgechat.engine.process.messages import Delta
from edgechat.library.starter import starter_path

PEERS = ("off", "ngram", *(f"fixed-{length}" for length in LENGTHS))


def answer(stages: tuple[Stage, Stage], peer: str, kind: str, n_tokens: int) -> tuple[float, float]:
    """Tokens per second of the peer's answer and of auto's, first tokens left out."""
    for stage, name in zip(stages, (peer, "auto"), strict=True):
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
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["off"], help="what auto is beside")
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
    stages[0].table = stages[1].table
    ratios: dict[str, dict[str, list[float]]] = {}
    for kind in options.kinds:
        for stage in stages:
            stage.ask("off", kind, 8)  # reads the prompt
        for peer in options.peers:
            found = ratios.setdefault(kind, {}).setdefault(peer, [])
            for round_ in range(options.rounds):
                sys.stderr.write(f"\r{kind} beside {peer}, round {round_ + 1} of {options.rounds}: ")
                theirs, ours = answer(stages, peer, kind, options.tokens)
                found.append(ours / theirs)
            sys.stderr.write("\r" + " " * 50 + "\r")
            if not options.json:
                low, high, middle = min(found), max(found), statistics.median(found)
                sys.stdout.write(f"{kind:6} auto / {peer:8} {middle:.3f}  ({low:.3f} to {high:.3f})\n")
                sys.stdout.flush()
    for stage in stages:
        stage.close()
    if options.json:
        sys.stdout.write(json.dumps({"target": target, "tokens": options.tokens, "auto_over": ratios}) + "\n")


if __name__ == "__main__":
    main()
