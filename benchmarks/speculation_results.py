"""What `speculation.py` found: on disk run by run, as one object, and as tables."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any


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
