"""What each way of quantizing costs in quality, and what it takes: one table for one source.

    python benchmarks/quality.py SOURCE [--work FOLDER] [--rows NAME...] [--samples 128] [--length 512]
        [--group-size N] [--text FILE] [--threads N] [--json]

SOURCE is a checkpoint's folder in safetensors. Each row is quantized by `edgechat quantize` in a process of
its own, whose seconds, CPU seconds (all threads) and peak memory are the table's; then it is read back and
compared with the source in another: perplexity, Kullback-Leibler divergence (mean and 99th percentile, in
nats), and the share of tokens where both find the same the likeliest, over each window's second half. Bits
per weight count the whole file. What is done stands in WORK/quality.json, with the settings: the same command
goes on where it was stopped, and rows that are there already are not made again. Results are deleted as soon
as nothing needs them.

CPU seconds depend little on what else the machine does; seconds do.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GGUF = ("--to", "gguf", "--type")
NO_IMATRIX = ("--imatrix", "off")
AS_STORED = ("--token-embedding-type", "bf16", "--output-tensor-type", "bf16")
"""The matrices that GPTQ leaves alone, too: what is quantized in both is the same."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way of quantizing."""

    name: str
    arguments: tuple[str, ...] = ()
    """Of `edgechat quantize`."""
    reads_text: bool = False
    grouped: bool = False
    of: str = ""
    """The row whose result is the source; "": the source itself."""
    unordered: bool = False
    """GPTQ with columns in the order in which they stand, which the command line doesn't offer."""


ROWS = (
    Row("rtn", ("--to", "gptq", "--method", "rtn"), grouped=True),
    Row("gptq", ("--to", "gptq"), reads_text=True, grouped=True),
    Row("gptq unordered", reads_text=True, grouped=True, unordered=True),
    Row("gptq desc-act", ("--to", "gptq", "--desc-act"), reads_text=True, grouped=True),
    Row("gptq asym", ("--to", "gptq", "--asym"), reads_text=True, grouped=True),
    Row("awq", ("--to", "awq"), reads_text=True, grouped=True),
    Row("int8 w8a16 rtn", ("--to", "int8", "--method", "rtn")),
    Row("int8 w8a16", ("--to", "int8"), reads_text=True),
    Row("int8 w8a8 rtn", ("--to", "int8", "--scheme", "w8a8", "--method", "rtn")),
    Row("int8 w8a8", ("--to", "int8", "--scheme", "w8a8", "--no-smooth"), reads_text=True),
    Row("int8 w8a8 smooth", ("--to", "int8", "--scheme", "w8a8", "--smooth"), reads_text=True),
    Row("q4_0", (*GGUF, "q4_0", *NO_IMATRIX)),
    Row("q4_0 imatrix", (*GGUF, "q4_0"), reads_text=True),
    Row("q4_0 imatrix bf16", (*GGUF, "q4_0", *AS_STORED), reads_text=True),
    Row("gptq g32", ("--to", "gptq", "--group-size", "32"), reads_text=True),
    Row("gptq g32 as q4_0", (*GGUF, "q4_0", *NO_IMATRIX), of="gptq g32"),
    Row("q4_k_m", (*GGUF, "q4_k_m", *NO_IMATRIX)),
    Row("q4_k_m imatrix", (*GGUF, "q4_k_m"), reads_text=True),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What rows are made and measured with."""

    source: str
    samples: int
    length: int
    group_size: int | None
    text: str
    """A file; "": the one that comes with edgechat."""
    threads: int
    """0: as many as there are cores."""


def main() -> None:
    """Make, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, help="a checkpoint's folder")
    parser.add_argument("--work", type=Path, help="a folder for results; default: a temporary one")
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], help="default: all")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--group-size", type=int, help="default: the largest that divides")
    parser.add_argument("--text", type=Path, help="to measure on; default: our own held-out text")
    parser.add_argument("--threads", type=int, default=0, help="default: as many as there are cores")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--child", choices=["unordered", "score"], help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = Settings(
        str(options.source.resolve()),
        options.samples,
        options.length,
        options.group_size,
        "" if options.text is None else str(options.text.resolve()),
        options.threads,
    )
    if options.child is not None:
        child = {"unordered": make_unordered, "score": score}[options.child]
        sys.stdout.write(json.dumps(child(settings, options.result)) + "\n")
        return
    if options.work is None:
        with tempfile.TemporaryDirectory(prefix="quality-") as folder:
            found = table(settings, Path(folder), options.rows)
    else:
        options.work.mkdir(parents=True, exist_ok=True)
        found = table(settings, options.work, options.rows)
    if options.json:
        sys.stdout.write(json.dumps({"settings": asdict(settings), "rows": found}, indent=2) + "\n")
    else:
        sys.stdout.write(as_text(found))


def table(settings: Settings, work: Path, names: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """All rows that are asked for, those that were done before among them."""
    record = work / "quality.json"
    done: dict[str, dict[str, Any]] = {}
    if record.is_file():
        before = json.loads(record.read_text(encoding="utf-8"))
        if before["settings"] != asdict(settings):
            sys.exit(f"{record} is of other settings: give another --work, or delete it")
        done = before["rows"]
    wanted = [row for row in ROWS if names is None or row.name in names]
    for row in wanted:
        if "mean_kl" in done.get(row.name, {}):
            continue
        sys.stderr.write(f"{row.name} ...\n")
        done[row.name] = measured(settings, work, row)
        partial = record.with_suffix(".partial")
        content = json.dumps({"settings": asdict(settings), "rows": done}, indent=1)
        partial.write_text(content, encoding="utf-8")
        partial.replace(record)
    for path in (*work.glob("result-*"), *work.glob("source-states*.pt")):
        _remove(path)
    return {row.name: done[row.name] for row in wanted}


def measured(settings: Settings, work: Path, row: Row) -> dict[str, Any]:
    """Make a result, compare it with the source, delete it unless another row reads it."""
    result = _result(work, row.name)
    took = _make(settings, work, row)
    if "failed" in took:
        return took
    arguments = ("--child", "score", "--result", str(result))
    scored, _ = _run(_ourselves(settings, *arguments), "comparing")
    if scored is None:
        return {"failed": "could not be compared"}
    if not any(other.of == row.name for other in ROWS):
        _remove(result)
    figures: dict[str, Any] = json.loads(scored.splitlines()[-1])
    return took | figures


def _make(settings: Settings, work: Path, row: Row) -> dict[str, Any]:
    """Have a row's result made, and what it takes."""
    result = _result(work, row.name)
    _remove(result)
    source = settings.source
    if row.of:
        needed = next(other for other in ROWS if other.name == row.of)
        if not _result(work, row.of).exists():
            _make(settings, work, needed)
        source = str(_result(work, row.of))
    if row.unordered:
        command = _ourselves(settings, "--child", "unordered", "--result", str(result))
    else:
        command = [sys.executable, "-m", "edgechat", "quantize", source, *row.arguments, "-o", str(result)]
        command += ["--json", "--quiet", "--force", "--threads", str(settings.threads)]
        command += ["--no-eval"]
        if row.reads_text:
            command += ["--samples", str(settings.samples), "--sequence-length", str(settings.length)]
        if row.grouped and settings.group_size is not None:
            command += ["--group-size", str(settings.group_size)]
    begun = time.monotonic()
    output, usage = _run(command, row.name)
    if output is None:
        return {"failed": f"{row.name} could not be made"}
    n_bytes = _size(result)
    return {
        "bytes": n_bytes,
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_memory": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def _ourselves(settings: Settings, *arguments: str) -> list[str]:
    command = [sys.executable, __file__, settings.source, *arguments]
    command += ["--samples", str(settings.samples), "--length", str(settings.length)]
    command += ["--threads", str(settings.threads)]
    if settings.group_size is not None:
        command += ["--group-size", str(settings.group_size)]
    return command + (["--text", settings.text] if settings.text else [])


def _run(command: Sequence[str], what: str) -> tuple[str | None, Any]:
    """What a command prints, None where it failed, and what it used."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)  # of this one child alone, its own children with it
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.stderr.write(f"{what} failed with exit code {process.returncode}\n")
            return None, usage
        output.seek(0)
        return output.read(), usage


def _result(work: Path, name: str) -> Path:
    kind = next(row.arguments[:2] for row in ROWS if row.name == name)
    return work / f"result-{name.replace(' ', '-')}{'.gguf' if kind == GGUF[:2] else ''}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(result: Path) -> int:
    if result.is_file():
        return result.stat().st_size
    return sum(path.stat().st_size for path in result.glob("*.safetensors"))


def make_unordered(settings: Settings, result: Path) -> dict[str, Any]:
    """GPTQ without an order of columns."""
    from quantize.layers import LayerRequest, run
    from quantize.recipe import Order, Recipe

    recipe = Recipe(group_size=settings.group_size, order=Order.GIVEN)
    request = LayerRequest(
        Path(settings.source),
        recipe,
        result,
        samples=settings.samples,
        length=settings.length,
        force=True,
        evaluated=False,
        threads=settings.threads,
    )
    return {"path": str(run(request).path)}


def score(settings: Settings, result: Path) -> dict[str, Any]:
    """A result against the source."""
    import torch

    from models.weights import open_weights
    from quantize.calibration import FolderTokenizer
    from quantize.compare import WINDOW, compare, held_out, last_states, windows_of

    text = Path(settings.text).read_text(encoding="utf-8") if settings.text else held_out()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    source = Path(settings.source)
    tokens = windows_of(text, FolderTokenizer(source), WINDOW)
    with open_weights(source) as before, open_weights(result) as after, torch.no_grad():
        # The same for all rows, but not for another text.
        of = hashlib.sha256(f"{settings.source}\0{text}".encode()).hexdigest()
        kept = result.with_name(f"source-states-{of[:16]}.pt")
        if not kept.is_file():
            torch.save(last_states(before, tokens), kept)
        found = compare(before, after, tokens, known=torch.load(kept))
        n_parameters = sum(tensor.n_elements for tensor in before.checkpoint.tensors.values())
    return {
        "bits_per_weight": round(8 * _size(result) / n_parameters, 3),
        "source_perplexity": found.source.value,
        "perplexity": found.result.value,
        "mean_kl": found.mean_kl,
        "p99_kl": found.p99_kl,
        "top1": found.top1,
        "tokens": found.n_tokens,
    }


COLUMNS: tuple[tuple[str, int, Callable[[dict[str, Any]], str]], ...] = (
    ("perplexity", 11, lambda row: f"{row['perplexity']:.3f}"),
    ("mean KL", 9, lambda row: f"{row['mean_kl']:.4f}"),
    ("p99 KL", 8, lambda row: f"{row['p99_kl']:.3f}"),
    ("top-1", 8, lambda row: f"{row['top1'] * 100:.1f}%"),
    ("size", 10, lambda row: f"{row['bytes'] / 1e6:.1f} MB"),
    ("bits/w", 8, lambda row: f"{row['bits_per_weight']:.2f}"),
    ("seconds", 9, lambda row: f"{row['seconds']:.0f}"),
    ("CPU s", 8, lambda row: f"{row['cpu_seconds']:.0f}"),
    ("peak", 9, lambda row: f"{row['peak_memory'] / 1e9:.2f} GB"),
)


def as_text(rows: dict[str, dict[str, Any]]) -> str:
    """The table."""
    lines = [f"{'':18}" + "".join(f"{title:>{width}}" for title, width, _ in COLUMNS)]
    source = next((row["source_perplexity"] for row in rows.values() if "mean_kl" in row), None)
    if source is not None:
        lines.append(f"{'source':18}{source:>11.3f}")
    for name, row in rows.items():
        if "mean_kl" not in row:
            lines.append(f"{name:18}  {row.get('failed', 'not done')}")
            continue
        lines.append(f"{name:18}" + "".join(f"{text(row):>{width}}" for _, width, text in COLUMNS))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
