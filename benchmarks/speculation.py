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
the rounds counts. The others than off, ngram and auto run in two of the rounds. Kinds of text without a
temperature are greedy, the open ones are drawn at 0.8 with a seed: all contenders write the same text, but
where a batch of another size turns a near-tie.

With --results each run is kept in a file as soon as it is done; the same command goes on where it was.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgechat import hardware
from edgechat.engine.drafting import Decides, Drafter
from edgechat.engine.engine import Engine
from edgechat.engine.process.draft_loading import LIKELY, WORTH, best_speedup
from edgechat.engine.process.messages import Event, Finished, Generate, Refused
from edgechat.engine.sampling import Sampler
from edgechat.engine.speculation.accept import acceptance, probability
from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.cost import CostTable, StepCost, ceiling
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.engine.speculation.measuring import completed, step_costs
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round, SpeculationStats
from edgechat.library.starter import starter_path
from edgechat.records import LoadSettings, SamplingSettings
from edgechat.runtimes.base import Chunk, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from models.chat import ChatMessage
from models.chat_template import ChatTemplate

CODE = '''class Inventory:
    """Counts of the articles in a store."""

    def __init__(self, name, capacity=100):
        self.name = name
        self.capacity = capacity
        self.items = {}

    def add(self, article, count=1):
        """Put some of an article into the store."""
        if count <= 0:
            raise ValueError("count must be positive")
        if self.total() + count > self.capacity:
            raise OverflowError("the store is full")
        self.items[article] = self.items.get(article, 0) + count

    def remove(self, article, count=1):
        """Take some of an article out of the store."""
        if self.items.get(article, 0) < count:
            raise KeyError(f"not enough of {article}")
        self.items[article] -= count
        if self.items[article] == 0:
            del self.items[article]

    def total(self):
        """All articles together."""
        return sum(self.items.values())
'''
REPORT = (
    "The lighthouse at Grey Point was built in 1851 from granite that was brought across the bay in "
    "sailing barges. Its first lamp burned whale oil and could be seen for nine miles in clear weather. "
    "In 1889 the oil lamp was replaced by one that burned paraffin, and the tower was raised by twelve "
    "feet. The keepers lived in two cottages beside the tower with their families, a cow, and a garden "
    "behind a wall of stones. In the great storm of January 1903 the sea broke the wall and carried the "
    "garden away, but the lamp was never dark. The light was made electric in 1934, and the last keeper "
    "left the station in the autumn of 1987. Today the tower belongs to the town, and visitors may climb "
    "its 142 steps on Sundays from May to September."
)
RECORDS = """Anna Berg, 34, engineer, Oslo, anna.berg@example.org
Jonas Lind, 41, teacher, Malmo, jonas.lind@example.org
Maria Costa, 29, designer, Porto, maria.costa@example.org
Peter Novak, 52, plumber, Brno, peter.novak@example.org
Lucie Martin, 38, pilot, Lyon, lucie.martin@example.org"""
FIELDS = ("name", "age", "job", "city", "email")
DOCUMENT = json.dumps(
    [dict(zip(FIELDS, line.split(", "), strict=True)) for line in RECORDS.splitlines()], indent=2
)

GREEDY = SamplingSettings(temperature=0)
OPEN = SamplingSettings(temperature=0.8, seed=7)
KINDS: dict[str, tuple[str, SamplingSettings]] = {
    "edit": (f"Rename the method `total` to `count_all` everywhere. Give the whole code:\n\n{CODE}", GREEDY),
    "quote": (
        f"{REPORT}\n\nWhat does the text say about the lamps and the light? Quote each sentence that says "
        "something about them, word for word, with a dash before it.",
        GREEDY,
    ),
    "json": (
        "Add the key active with the value true to each object, and give the whole JSON:\n\n"
        f"```json\n{DOCUMENT}\n```",
        GREEDY,
    ),
    "form": (
        "Turn this into a JSON array of objects with the keys name, age, job, city and email:\n\n" + RECORDS,
        GREEDY,
    ),
    "prose": ("Write a story about two brothers who open a bakery in a small town.", OPEN),
    "poem": ("Write a long poem about the sea in winter.", OPEN),
    "echo": (f"Repeat the following text word for word, and nothing else:\n\n{REPORT}", GREEDY),
}
MAIN = ("off", "ngram", "auto")
LENGTHS = range(1, 9)
ACCEPTANCE_KINDS = ("prose", "poem", "quote")


class Fixed:
    """Always so many drafts; the opposite of a controller."""

    def __init__(self, longest: int) -> None:
        """Verify `longest` drafts in each step that has them."""
        self.longest = longest
        self.start()

    def start(self) -> None:
        """A new answer begins."""
        self._rounds = self._tokens = self._drafted = self._accepted = 0

    def plan(self, drafts: Sequence[Draft], rows: int = 0) -> int:
        """All that there are."""
        return min(len(drafts), self.longest)

    def wants_more(
        self, source: Source, drafts: Sequence[Draft], rows: int = 0, catch_up_s: float = 0.0
    ) -> bool:
        """Up to the length."""
        return len(drafts) < self.longest

    def record(self, round_: Round) -> None:
        """Count."""
        self._rounds += 1
        self._tokens += len(round_.tokens)
        self._drafted += len(round_.drafts)
        self._accepted += round_.n_accepted

    def stats(self) -> SpeculationStats:
        """The counts."""
        return SpeculationStats(self._rounds, self._tokens, self._drafted, self._accepted, 0.0, 0.0, "")


class Stage:
    """The models, and one engine whose drafter changes from run to run."""

    def __init__(self, target: str, draft: str | None, threads: int, n_ctx: int) -> None:
        """Load."""
        settings = LoadSettings(target, n_ctx=n_ctx, n_sequences=1, n_threads=threads)
        self.runtime: Any = LlamaCppRuntime.load(settings)
        self.drafts: Any = None
        if draft is not None:
            self.drafts = LlamaCppRuntime.load(
                LoadSettings(draft, n_ctx=n_ctx, n_sequences=1, n_threads=threads)
            )
        source = self.runtime.info.chat_template
        eos = max(self.runtime.info.eog_ids)
        self.template = (
            ChatTemplate(source, bos=None, eos=self.runtime.tokenizer.name(eos)) if source else None
        )
        self.events: list[Event] = []
        self.engine = Engine(self.runtime, self.template, self.events.append)  # type: ignore[arg-type]
        self.calibration: dict[str, Calibration] = {}
        self.costs: dict[str, StepCost] = {}
        self.model: DraftModel | None = None
        self.worth = False
        """Whether the draft model could pay."""
        self.table = CostTable((1,), (1.0,))

    def measure(self, seconds: float) -> dict[str, Any]:
        """V(k), and the draft model's step."""
        self.table = completed(step_costs(self.runtime, seconds=seconds))
        plain = self.table.seconds[0]
        measured: dict[str, Any] = {
            "v": {str(k): s / plain for k, s in zip(self.table.widths, self.table.seconds, strict=True)},
            "plain_ms": plain * 1000,
            "ceiling": ceiling(StepCost(self.table), 15),
        }
        if self.drafts is not None:
            step_s = step_costs(self.drafts, seconds=seconds / 4, widths=(1,)).seconds[0]
            self.model = DraftModel(self.drafts, self.runtime.tokenizer.n_vocab, step_s)
            measured["draft_over_plain"] = step_s / plain
            could_give = best_speedup(self.table, step_s, LIKELY)
            measured["draft_could_give"] = could_give
            self.worth = could_give >= WORTH
        return measured

    def contenders(self) -> list[str]:
        """Those that can run here."""
        fixed = [f"fixed-{k}" for k in LENGTHS]
        return [*MAIN, *fixed, *(("draft", "draft-4") if self.model is not None else ())]

    def drafter(self, name: str) -> Drafter | None:
        """What drafts in a run. It knows no words of the runs before, but how often drafts stood and what
        steps took, as an engine does that goes on."""
        if name == "off":
            return None
        decides = None
        if "-" in name:
            length = int(name.partition("-")[2])

            def decides() -> Decides:
                return Fixed(length)

        with_model = name.startswith("draft") or (name == "auto" and self.worth)
        return Drafter(
            self.costs.setdefault(name, StepCost(self.table)),
            eog=self.runtime.info.eog_ids,
            ngrams=not name.startswith("draft"),
            model=self.model if with_model else None,
            decides=decides,
            calibration=self.calibration.setdefault(name, Calibration()),
        )

    def ask(self, name: str, kind: str, n_tokens: int) -> Finished:
        """One run."""
        prompt, sampling = KINDS[kind]
        self.engine.draft_with(self.drafter(name))
        self.events.clear()
        messages = (ChatMessage("user", prompt),)
        self.engine.submit(
            Generate(
                0, messages=messages, sampling=sampling, max_tokens=n_tokens, conversation=kind,
                ignore_eog=KINDS[kind][1] is OPEN,
            )
        )  # fmt: skip
        while self.engine.step():
            pass
        last = self.events[-1]
        if isinstance(last, Refused):
            raise RuntimeError(last.error)
        if not isinstance(last, Finished):
            raise RuntimeError("no answer")
        return last

    def close(self) -> None:
        """Free the models."""
        if self.drafts is not None:
            self.drafts.close()
        self.runtime.close()


class Results:
    """What was measured, on disk after each run."""

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        """Go on with what a file of the same command holds."""
        self.path = path
        self.data: dict[str, Any] = {"head": head, "runs": []}
        if path is not None and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept.get("head") == head:
                self.data = kept
            else:
                sys.exit(f"{path} is of another command: name another file, or remove it")

    def __getitem__(self, key: str) -> Any:
        return self.data.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keep one result."""
        self.data[key] = value
        self.save()

    def add(self, run: dict[str, Any]) -> None:
        """Keep one run."""
        self.data["runs"].append(run)
        self.save()

    def has(self, kind: str, name: str, round_: int) -> bool:
        """Whether a run was made before."""
        return any(
            run["kind"] == kind and run["name"] == name and run["round"] == round_
            for run in self.data["runs"]
        )

    def save(self) -> None:
        """Write all, so that a stop costs one run."""
        if self.path is not None:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.data), encoding="utf-8")
            part.replace(self.path)


def run_kind(stage: Stage, results: Results, kind: str, options: argparse.Namespace) -> None:
    """All runs of one kind of text."""
    contenders = [name for name in stage.contenders() if not options.only or name in options.only]
    side_rounds = {0, options.rounds // 2}
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
                "reason": spoken.reason if spoken else "",
            }
        )
    sys.stderr.write("\r" + " " * 50 + "\r")


def acceptances(stage: Stage, n_tokens: int) -> list[dict[str, Any]]:
    """How often a drawn draft stands, by the rejection rule and by sample-and-compare: exact expectations
    at each position of texts that the target drew."""
    rows = []
    for temperature in (0.8, 1.0):
        usual = SamplingSettings(temperature=temperature, seed=3)
        free = SamplingSettings(temperature=temperature, seed=3, top_k=0, top_p=1, min_p=0)
        for label, sampling in (("defaults", usual), ("open", free)):
            sampler = Sampler(sampling)
            sums = np.zeros(3)
            n = 0
            for kind in ACCEPTANCE_KINDS:
                p_rows, q_rows = _both(stage, kind, sampling, n_tokens)
                for p_row, q_row in zip(p_rows, q_rows, strict=True):
                    p, q = sampler.distribution(p_row), sampler.distribution(q_row)
                    top = int(q.ids[q.probabilities.argmax()])
                    same = sum(
                        float(q.probabilities[i]) * probability(p, int(q.ids[i]))
                        for i in np.argsort(-q.probabilities)[:64]
                    )
                    sums += (acceptance(p, q), same, probability(p, top))
                    n += 1
            rule, compared, likeliest = (sums / n).tolist()
            rows.append(
                {
                    "temperature": temperature,
                    "sampling": label,
                    "positions": n,
                    "rejection_rule": rule,
                    "sample_and_compare": compared,
                    "ratio": rule / compared,
                    "likeliest_drafted": likeliest,
                }
            )
    return rows


def _both(stage: Stage, kind: str, sampling: SamplingSettings, n_tokens: int) -> tuple[Any, Any]:
    """Logits of both models at each token of an answer that the target draws, [n, n_vocab]."""
    stage.engine.release_idle()
    if stage.model is not None:
        stage.model.free(0)
    tokenizer = stage.runtime.tokenizer
    messages = [ChatMessage("user", KINDS[kind][0])]
    prompt = tokenizer.encode(stage.template.render(messages).text if stage.template else KINDS[kind][0])
    sampler = Sampler(sampling)
    found: list[Any] = []
    stage.runtime.decode([Chunk(0, prompt[:-1], 0, Wanted.NONE)])
    text = list(prompt)
    for _ in range(n_tokens):
        row = stage.runtime.decode([Chunk(0, text[-1:], len(text) - 1)])[0].copy()
        found.append(row)
        text.append(sampler.sample(row))
    n_vocab = min(tokenizer.n_vocab, stage.drafts.tokenizer.n_vocab)
    stage.drafts.decode([Chunk(0, prompt[:-1], 0, Wanted.NONE)])
    drafted = []
    for at in range(len(prompt) - 1, len(text) - 1, 32):
        part = text[at : min(at + 32, len(text) - 1)]
        drafted.append(stage.drafts.decode([Chunk(0, part, at, Wanted.ALL)])[:, :n_vocab].copy())
    stage.runtime.free(0)
    stage.drafts.free(0)
    return np.array(found)[:, :n_vocab], np.concatenate(drafted)


def report(results: Results) -> dict[str, Any]:
    """Medians of the ratios to plain decoding, and whether each promise was kept."""
    runs = results["runs"]
    kinds: dict[str, Any] = {}
    for kind in dict.fromkeys(run["kind"] for run in runs):
        mine = [run for run in runs if run["kind"] == kind]
        plain = {run["round"]: run for run in mine if run["name"] == "off"}
        rows: dict[str, Any] = {}
        for name in dict.fromkeys(run["name"] for run in mine):
            those = [run for run in mine if run["name"] == name and run["round"] in plain]
            if not those:
                continue
            ratios = [run["tokens_per_s"] / plain[run["round"]]["tokens_per_s"] for run in those]
            drafted = sum(run["drafted"] for run in those)
            rows[name] = {
                "tokens_per_s": statistics.median(run["tokens_per_s"] for run in those),
                "over_off": statistics.median(ratios),
                "tokens_per_step": sum(len(run["tokens"]) for run in those)
                / sum(run["steps"] for run in those),
                "acceptance": sum(run["accepted"] for run in those) / drafted if drafted else None,
                "predicted": statistics.median(run["predicted"] for run in those),
                "same_text": all(run["tokens"] == plain[run["round"]]["tokens"] for run in those),
                "reason": those[-1]["reason"],
            }
        fixed = {name: row["over_off"] for name, row in rows.items() if "-" in name}
        best = max(fixed, key=fixed.__getitem__, default="off")
        auto = rows.get("auto")
        kinds[kind] = {
            "rows": rows,
            "best_fixed": best,
            "auto_over_best_fixed": auto["over_off"] / max(fixed.get(best, 1.0), 1.0) if auto else None,
            "predicted_over_measured": auto["predicted"] / auto["over_off"] if auto else None,
        }
    return {
        "head": results["head"],
        "costs": results["costs"],
        "kinds": kinds,
        "acceptance": results["acceptance"],
    }


def show(found: dict[str, Any]) -> None:
    """The tables."""
    head, costs = found["head"], found["costs"]
    write = sys.stdout.write
    write(f"{head['target']}, draft {head['draft'] or 'none'}, {head['threads']} threads, ")
    write(f"{head['tokens']} tokens, {head['rounds']} rounds\n\n")
    write(f"a token takes {costs['plain_ms']:.1f} ms; V(k) / V(1), and tokens a plain step at best:\n")
    for k, v in costs["v"].items():
        write(f"  {k:>2}  {v:5.2f}  {int(k) / v:5.2f}\n")
    if "draft_over_plain" in costs:
        write(
            f"a draft of the draft model takes {costs['draft_over_plain']:.2f} of a token; if 4 of 5 stood,"
        )
        write(f" it would give {costs['draft_could_give']:.2f}\n")
    for kind, table in found["kinds"].items():
        write(
            f"\n{kind:12}{'tokens/s':>10}{'over off':>10}{'a step':>8}{'stood':>8}{'predicted':>11}  text\n"
        )
        for name, row in table["rows"].items():
            stood = "-" if row["acceptance"] is None else f"{row['acceptance']:.0%}"
            write(
                f"{name:12}{row['tokens_per_s']:10.1f}{row['over_off']:10.3f}{row['tokens_per_step']:8.2f}"
                f"{stood:>8}{row['predicted']:11.2f}  {'same' if row['same_text'] else 'differs'}\n"
            )
        if table["auto_over_best_fixed"] is not None:
            write(
                f"auto over the best fixed ({table['best_fixed']}): {table['auto_over_best_fixed']:.3f}; "
                f"predicted over measured: {table['predicted_over_measured']:.3f}\n"
            )
            if table["rows"]["auto"]["reason"]:
                write(f"off at the end: {table['rows']['auto']['reason']}\n")
    if found["acceptance"]:
        write(f"\n{'drawn drafts':24}{'rule':>8}{'compare':>9}{'ratio':>7}{'likeliest':>11}\n")
        for row in found["acceptance"]:
            write(
                f"T={row['temperature']}, {row['sampling']:16}{row['rejection_rule']:8.3f}"
                f"{row['sample_and_compare']:9.3f}{row['ratio']:7.2f}{row['likeliest_drafted']:11.3f}\n"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What speculation gains, by kind of text.")
    parser.add_argument("target", nargs="?", help="a GGUF file; the starter model if none is named")
    parser.add_argument("--draft", help="a GGUF file of the same vocabulary")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="runs of off, ngram and auto")
    parser.add_argument("--threads", type=int, default=hardware.physical_cores())
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="+", default=[], help="contenders; off is needed")
    parser.add_argument("--results", type=Path, help="keep each run here, and go on with what is here")
    parser.add_argument("--quick", action="store_true", help="short answers, one round, few contenders")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.rounds = min(options.tokens, 48), 1
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
