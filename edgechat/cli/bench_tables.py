"""The tables of `edgechat bench`."""

from collections.abc import Iterator

from edgechat.bench.results import Report, SpeculationResult, Speed, Verify
from edgechat.cli.output import answer, one_line
from edgechat.cli.tables import table
from edgechat.units import bytes_text

SPECULATION_HEADS = ("ratio", "drafts stood", "tokens a step", "expected", "note")
Row = tuple[str, str, str, str, str]


def show(report: Report) -> None:
    """Print all that was measured."""
    if report.model:
        answer(one_line(head(report)) + "\n")
    rows = list(figures(report))
    if rows:
        table(("", "measured", "peer's", "ratio", "the peer"), rows)
    if report.verify is not None:
        table(("batch of", "takes", "steps", "at best", "the peer"), list(verify_rows(report.verify)))
    if report.speculation is not None:
        table(
            ("text", f"with {report.speculation.draft}", "without", *SPECULATION_HEADS),
            list(speculation_rows(report.speculation)),
        )
    if report.interrupted:
        answer("Interrupted: the rest was not measured.\n")


def head(report: Report) -> str:
    """The model, and what it runs on."""
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    if report.adaptive_threads:
        threads = f"up to {threads}"
    return (
        f"{report.model}, {report.quantization}, {bytes_text(report.size_bytes)}, {report.backend}, {threads}"
        f"{', quick' if report.quick else ''}, measured in {report.seconds:.0f} s"
    )


def figures(report: Report) -> Iterator[Row]:
    """One row for each figure that has one peer."""
    if report.decode is not None:
        yield _speed("decode", report.decode)
    if report.prefill is not None:
        yield _speed(f"prefill {report.prefill.tokens}", report.prefill)
    if (one := report.window) is not None:
        ratio = f"{one.last_over_first:.3f}" if one.evictions > 1 else "-"
        name = f"window of {one.n_ctx}, {one.tokens} tokens"
        yield name, f"{one.last_ms:.2f} ms/token", f"{one.first_ms:.2f} ms/token", ratio, one.peer
        yield "  memory since", f"{one.rss_growth:+.2%}", "", "", one.peer
    if (turn := report.prefix) is not None:
        cold = f"{turn.cold_s * 1000:.0f} ms"
        warm, again = f"{turn.next_turn_s * 1000:.0f} ms", f"{turn.restart_s * 1000:.0f} ms"
        yield (
            f"next turn after {turn.prompt_tokens}",
            warm,
            cold,
            f"{turn.cold_over_next_turn:.1f}",
            turn.peer,
        )
        yield "  after a restart", again, cold, f"{turn.cold_over_restart:.1f}", turn.peer
    if (memory := report.memory) is not None:
        f16 = next(kind.bytes_per_token for kind in memory.kv if kind.kv_type == "f16")
        for n, kind in enumerate(memory.kv):
            name = f"{'  it would take' if n else 'context'}, {kind.kv_type}"
            each = f"{bytes_text(kind.bytes_per_token)} a token"
            size = f"{each}, {bytes_text(kind.total_bytes)} for {memory.n_ctx}"
            yield name, size, f"{bytes_text(f16)} a token", f"{kind.of_f16:.2f}", "f16"
        planned = bytes_text(memory.planned_bytes) if memory.planned_bytes else "-"
        ratio = f"{memory.measured_over_planned:.2f}" if memory.planned_bytes else "-"
        yield "engine in memory", bytes_text(memory.measured_bytes), planned, ratio, "the planner's estimate"


def verify_rows(found: Verify) -> Iterator[Row]:
    """V(k)."""
    for width, ratio, best in zip(found.widths, found.over_plain, found.best, strict=True):
        yield f"verify {width}", f"{ratio * found.plain_ms:.2f} ms", f"{ratio:.2f}", f"{best:.2f}", found.peer


def speculation_rows(found: SpeculationResult) -> Iterator[tuple[str, ...]]:
    """Each kind of text."""
    for one in found.kinds:
        notes = [one.reason] if one.reason else []
        if not one.same_text:
            notes.append("texts part")
        yield (
            one.kind,
            f"{one.tokens_per_s:.1f}/s",
            f"{one.off_tokens_per_s:.1f}/s",
            f"{one.over_off:.2f}" if one.over_off else "-",
            f"{one.accepted} of {one.drafted}",
            f"{one.tokens_per_step:.2f}",
            f"{one.predicted:.2f}",
            "; ".join(notes),
        )


def _speed(name: str, one: Speed) -> Row:
    mine = f"{one.tokens_per_s:.1f} tokens/s"
    if one.gb_per_s is not None:
        mine += f", {one.gb_per_s:.2f} GB/s"
    return name, mine, f"{one.peer_tokens_per_s:.1f} tokens/s", f"{one.over_peer:.3f}", one.peer
