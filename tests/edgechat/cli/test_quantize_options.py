"""What the options of `edgechat quantize` become."""

import sys
from pathlib import Path

import pytest

from edgechat.cli.app import main
from edgechat.cli.quantize_gguf import importance_of
from edgechat.cli.quantize_layers import LayerOptions, request_of
from edgechat.errors import UsageError
from quantize.errors import BadRequest
from quantize.layer_request import LayerRequest
from quantize.plan import target_of
from quantize.request import Request
from quantize.type_choice import NO_WISHES


@pytest.mark.parametrize("to", ["gptq", "gguf"])
def test_runs_take_what_the_planner_of_models_would(
    to: str, starter_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person's limit but for a twentieth."""
    seen: list[Request | LayerRequest] = []

    def refuse(request: Request | LayerRequest, *_: object) -> None:
        seen.append(request)
        raise BadRequest("enough")

    for runs in ("quantize.pipeline.run", "quantize.layers.run"):
        monkeypatch.setattr(runs, refuse)
    monkeypatch.setenv("EDGECHAT_MEMORY_LIMIT", "1G")
    assert main(["quantize", str(starter_gguf), "--to", to]) == 2
    assert seen[0].free_memory() == 2**30 - 2**30 // 20


@pytest.mark.parametrize("words", [["quantize", "--to", "gptq"], ["eval", "--against", "starter"]])
def test_without_torch_it_is_said_what_brings_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To somebody who has a checkout: there is no package of that name to install."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "quantize.compare", raising=False)
    assert main([words[0], "starter", *words[1:]]) == 6
    advice = ": `make setup-all`, or `pip install '.[torch]'`, in edgechat's folder\n"
    assert capsys.readouterr().err.endswith(advice)
    assert list(tmp_path.iterdir()) == []


def test_resume_goes_with_every_gguf_file() -> None:
    """With an importance matrix, without, and where none is of use."""
    resume = LayerOptions(resume=True)
    assert importance_of(None, resume, target_of("q4_k_m"), NO_WISHES) is not None
    assert importance_of("off", resume, target_of("q4_k_m"), NO_WISHES) is None
    assert importance_of(None, resume, target_of("f16"), NO_WISHES) is None
    with pytest.raises(UsageError, match=r"^--samples doesn't go with --imatrix off"):
        importance_of("off", LayerOptions(resume=True, samples=4), target_of("q4_k_m"), NO_WISHES)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4GB", 4 * 10**9),
        ("800 MB", 8 * 10**8),
        ("1.5GiB", 1_610_612_736),
        ("123B", 123),
        ("1500000", 1_500_000),
    ],
)
def test_amounts_of_memory(text: str, n_bytes: int) -> None:
    """Decimal, or binary where they say so, as for --target-size."""
    options = LayerOptions(max_memory=text)
    assert request_of("awq", Path("m"), options, output=None, force=False, threads=1).max_memory == n_bytes


def test_an_amount_of_memory_without_its_unit() -> None:
    with pytest.raises(UsageError, match="--max-memory 8 lacks a unit: give 8GB"):
        request_of("awq", Path("m"), LayerOptions(max_memory="8"), output=None, force=False, threads=1)


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-memory .*: an amount such as 4GB or 800MB belongs there"):
        request_of("awq", Path("m"), LayerOptions(max_memory=text), output=None, force=False, threads=1)


@pytest.mark.parametrize(
    ("to", "options", "name"),
    [
        ("awq", LayerOptions(symmetric=True), "--sym"),
        ("awq", LayerOptions(symmetric=False), "--asym"),
        ("int8", LayerOptions(symmetric=False), "--asym"),
        ("awq", LayerOptions(desc_act=True), "--desc-act"),
        ("int8", LayerOptions(checkpoint_format="gptq"), "--checkpoint-format"),
        ("gptq", LayerOptions(smooth=True), "--smooth"),
        ("gguf", LayerOptions(symmetric=False), "--asym"),
        ("gguf", LayerOptions(bits=4), "--bits"),
    ],
)
def test_a_refused_option_is_named_as_it_was_given(to: str, options: LayerOptions, name: str) -> None:
    def made() -> None:
        if to == "gguf":
            importance_of(None, options, target_of("q4_k_m"), NO_WISHES)
        else:
            request_of(to, Path("m"), options, output=None, force=False, threads=1)

    with pytest.raises(UsageError, match=f"^{name} doesn't go with --to {to}$"):
        made()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"calibration": "/no/such.txt"}, "--calibration"),
        ({"calibration": "self", "seed": 1}, "--calibration"),
        ({"samples": 16}, "--samples"),
        ({"length": 64}, "--sequence-length"),
    ],
)
def test_rounding_takes_no_calibration(options: dict[str, object], name: str) -> None:
    """Only where it reads a text: INT8 that is smoothed."""
    for to, method in (("gptq", "rtn"), ("gptq", "RTN"), ("int8", "rtn")):
        given = LayerOptions(method=method, **options)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"^{name} doesn't go with --method rtn, which rounds without"):
            request_of(to, Path("m"), given, output=None, force=False, threads=1)
    smoothed = LayerOptions(method="rtn", scheme="w8a8", smooth=True, **options)  # type: ignore[arg-type]
    request_of("int8", Path("m"), smoothed, output=None, force=False, threads=1)


def test_rounded_activations_are_smoothed_unless_it_is_said() -> None:
    """Not where nothing is read that could tell how."""

    def smooth(**given: object) -> bool:
        options = LayerOptions(**given)  # type: ignore[arg-type]
        return request_of("int8", Path("m"), options, output=None, force=False, threads=1).recipe.smooth

    assert smooth(scheme="w8a8")
    assert smooth(scheme="W8A8", method="GPTQ")
    assert not smooth(scheme="w8a8", smooth=False)
    assert not smooth(scheme="w8a8", method="rtn")
    assert smooth(scheme="w8a8", method="rtn", smooth=True)
    assert not smooth()
    assert LayerOptions(smooth=False).typed("smooth") == "--no-smooth"


def test_rounding_keeps_what_it_uses() -> None:
    """The comparison with the source, memory, the device."""
    given = LayerOptions(method="rtn", evaluate=True, max_memory="4GB", device="cpu", resume=True)
    assert request_of("gptq", Path("m"), given, output=None, force=False, threads=1).evaluated
    ordered = LayerOptions(method="RTN", desc_act=True)
    with pytest.raises(UsageError, match="--desc-act is an order of GPTQ's"):
        request_of("gptq", Path("m"), ordered, output=None, force=False, threads=1)
