"""What speculation gains, by kind of text, against plain decoding and against fixed numbers of drafts.

    python benchmarks/speculation.py TARGET.gguf [--draft DRAFT.gguf] [--results FILE] [--quick] [--json]

Contenders, all on one loaded model with one prompt's cache, so that only decoding is timed:

    off         plain decoding
    ngram       words of the conversation, under the controller
    auto        the same, and the draft model where the words have nothing; left out, as `--draft auto`
                does, where it could not pay by the measured times
    draft       the draft model alone, under the controller
    fixed-1..8  words of the conversation, always so many
    draft-4     the draft model alone, always four

The runs of one kind of text alternate, and each is divided by the plain run of the same round; the median of
the rounds counts. The others than off, ngram and auto run in two of the rounds, or in --side-rounds: the best
of many that ran twice owes it to luck in part. Kinds of text without a temperature are greedy, the open ones
are drawn at 0.8 with a seed: all contenders write the same text, but where a batch of another size turns a
near-tie.

With --results each run is kept in a file as soon as it is done; the same command goes on where it was.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from speculation_acceptance import acceptances
from speculation_contenders import MAIN, Stage
from speculation_results import Results, report, show
from speculation_texts import KINDS

from edgechat import hardware
from edgechat.library.starter import starter_path


def run_kind(stage: Stage, results: Results, kind: str, options: argparse.Namespace) -> None:
    """All runs of one kind of text."""
    contenders = [name for name in stage.contenders() if not options.only or name in options.only]
    step = options.rounds / max(1, options.side_rounds)
    side_rounds = {int(step * n) for n in range(options.side_rounds)}
    todo = [
        (round_, name)
        for round_ in range(options.rounds)
        for name in (contenders if round_ % 2 == 0 else contenders[::-1])
        if (name in MAIN or round_ in side_rounds) and not results.has(kind, name, round_)
    ]
    if not todo:
        return
    stage.ask("off", kind, 8)  # reads the prompt
    if stage.model is not None:
        stage.ask("draft-4", kind, 8)  # and so does the draft model
    for round_, name in todo:
        sys.stderr.write(f"\r{kind}, round {round_ + 1} of {options.rounds}: {name:10}")
        finished = stage.ask(name, kind, options.tokens)
        spoken = finished.speculation
        results.add(
            {
                "kind": kind,
                "name": name,
                "round": round_,
                "tokens_per_s": finished.timings.tokens_per_s,
                "tokens": list(finished.tokens),
                "steps": spoken.steps if spoken else finished.timings.decode_tokens,
                "drafted": spoken.drafted if spoken else 0,
                "accepted": spoken.accepted if spoken else 0,
                "predicted": spoken.predicted if spoken else 1.0,
                "told": spoken.speedup if spoken else 1.0,
                "reason": spoken.reason if spoken else "",
            }
        )
    sys.stderr.write("\r" + " " * 50 + "\r")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What speculation gains, by kind of text.")
    parser.add_argument("target", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--draft", help="a GGUF file of the same vocabulary")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="runs of off, ngram and auto")
    parser.add_argument("--side-rounds", type=int, default=2, help="runs of each of the others")
    parser.add_argument("--threads", type=int, default=hardware.physical_cores())
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="+", default=[], help="contenders; off is needed")
    parser.add_argument("--results", type=Path, help="keep each run here, and go on with what is here")
    parser.add_argument("--quick", action="store_true", help="short answers, one round, few contenders")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.rounds, options.side_rounds = min(options.tokens, 48), 1, 1
        options.only = options.only or [*MAIN, "fixed-4"]

    target = options.target or str(starter_path())
    head = {
        "target": Path(target).name,
        "draft": Path(options.draft).name if options.draft else "",
        "tokens": options.tokens,
        "rounds": options.rounds,
        "threads": options.threads,
    }
    results = Results(options.results, head)
    started = time.monotonic()
    stage = Stage(target, options.draft, options.threads, n_ctx=2048)
    try:
        costs = stage.measure(1.0 if options.quick else 8.0)
        if results["costs"] is None:
            results.put("costs", costs)
        for kind in options.kinds:
            run_kind(stage, results, kind, options)
            sys.stderr.write(f"{kind}: done after {(time.monotonic() - started) / 60:.1f} minutes\n")
        if stage.drafts is not None and results["acceptance"] is None:
            results.put("acceptance", acceptances(stage, 24 if options.quick else 120))
    finally:
        stage.close()
    found = report(results)
    if options.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        show(found)


if __name__ == "__main__":
    main()
