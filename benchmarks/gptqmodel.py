"""GPTQ here and in GPTQModel: the same source, calibration tokens, bits and group; quality and cost.

    python benchmarks/gptqmodel.py SOURCE [--samples 64] [--length 512] [--group-size 64] [--desc-act]
                                   [--only edgechat|gptqmodel] [--keep FOLDER] [--json]

SOURCE is a checkpoint's folder in safetensors. `make test-interop` makes the environment that GPTQModel runs
in (--peer-python). Each quantizes once, one after the other, in float32 on the CPU, in a process of its own,
from the start of Python to the saved checkpoint:

    wall, CPU   seconds; CPU is user and system time of the process and all its children
    memory      the peak of the resident memory of the process and its children, looked at ten times a second
    KL          mean over tokens of the divergence from the source, on quantize/data/eval.txt, of the
                checkpoint as it was saved, read back by models/packed.py and run by our decoder

GPTQModel keeps its defaults (damping, group-aware order) where the options don't say otherwise, and so does
edgechat. Give --desc-act for the classic order in both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".venv-interop" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took, with all its children."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def measured(command: list[str], log: Path) -> Cost:
    """Run a command to its end."""
    import psutil

    environment = {**os.environ, "GPTQMODEL_CPU_WORKERS": "2", "HF_HUB_OFFLINE": "1"}
    begun = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent, env=environment)
        peak, done = 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            top = psutil.Process(process.pid)
            while not done.wait(0.1):
                peak = max(peak, tree_bytes(top))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
    wall = time.monotonic() - begun
    if process.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{log.read_text()[-3000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak)


def tree_bytes(top: Any) -> int:
    """Resident memory of a process and its children."""
    import psutil

    total = 0
    try:
        for process in (top, *top.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:
        pass  # one of them has just ended
    return total


def export_tokens(source: Path, samples: int, length: int, path: Path) -> None:
    """The tokens that `edgechat quantize` calibrates with."""
    import numpy as np

    from quantize import calibration

    found = calibration.samples(
        calibration.bundled(), calibration.FolderTokenizer(source), count=samples, length=length
    )
    np.save(path, found.tokens)


def peer(source: str, tokens: str, result: str, group_size: int, desc_act: bool) -> None:
    """In GPTQModel's environment: quantize and save."""
    import numpy as np
    import torch
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(bits=4, group_size=group_size, sym=True, desc_act=desc_act)
    rows = [{"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for row in np.load(tokens)]
    model = GPTQModel.load(source, config, device="cpu", dtype=torch.float32)
    begun = time.monotonic()
    model.quantize(rows, batch_size=4)
    print(f"quantize alone: {time.monotonic() - begun:.1f} s")
    model.save(result)


def divergence(source: Path, result: Path) -> tuple[float, float]:
    """Mean KL, and the share of tokens where both think the same the likeliest."""
    from quantize.compare import compare_paths, held_out

    found = compare_paths(source, result, held_out(), told=lambda share: None)
    return found.mean_kl, found.top1


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both, or one of them."""
    source, size = arguments.source.resolve(), str(arguments.group_size)
    counts = ["--samples", str(arguments.samples), "--sequence-length", str(arguments.length)]
    order = ["--desc-act"] if arguments.desc_act else []
    tokens = folder / "tokens.npy"
    export_tokens(source, arguments.samples, arguments.length, tokens)
    results = {"edgechat": folder / "edgechat", "gptqmodel": folder / "gptqmodel"}
    commands = {
        "gptqmodel": [
            str(arguments.peer_python),
            __file__,
            "--peer",
            str(tokens),
            str(results["gptqmodel"]),
            str(source),
            "--group-size",
            size,
            *order,
        ],
        "edgechat": [
            *(sys.executable, "-m", "edgechat", "quantize", str(source), "--to", "gptq", "--no-eval"),
            *("--device", "cpu", "--group-size", size, *counts, *order, "-o", str(results["edgechat"])),
        ],
    }
    found: dict[str, Any] = {}
    for name, command in commands.items():
        if arguments.only not in {None, name}:
            continue
        load = os.getloadavg()[0]
        cost = measured(command, folder / f"{name}.log")
        show(name, cost, load)
        kl, top1 = divergence(source, results[name])
        print(f"{name:10} KL {kl:.4f}  top-1 {top1:.1%}", file=sys.stderr)
        found[name] = {**asdict(cost), "mean_kl": kl, "top1": top1, "load_before": load}
    if len(found) == 2:
        ours, theirs = found["edgechat"], found["gptqmodel"]
        found["ratios"] = {
            key: ours[key] / theirs[key] for key in ("mean_kl", "peak_bytes", "wall_s", "cpu_s")
        }
    return found


def show(name: str, cost: Cost, load: float) -> None:
    """One line."""
    print(
        f"{name:10} wall {cost.wall_s:6.1f} s  CPU {cost.cpu_s:6.1f} s  "
        f"memory {cost.peak_bytes / 1e9:.2f} GB  load before {load:.1f}",
        file=sys.stderr,
    )


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--desc-act", action="store_true")
    parser.add_argument("--only", choices=("edgechat", "gptqmodel"))
    parser.add_argument("--keep", type=Path, help="leave results and logs in this folder")
    parser.add_argument("--peer-python", type=Path, default=PEER)
    parser.add_argument("--peer", nargs=2, metavar=("TOKENS", "RESULT"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.peer:
        return peer(str(arguments.source), *arguments.peer, arguments.group_size, arguments.desc_act)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = run(arguments, folder.resolve())
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif "ratios" in found:
        print("edgechat / gptqmodel: " + ", ".join(f"{k} {v:.2f}" for k, v in found["ratios"].items()))


if __name__ == "__main__":
    # Not this folder: a benchmark's name would hide the package of the same name.
    sys.path[0] = str(ROOT)
    main()
