"""What is refused before torch is imported, and what a run settles by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantize.early import settle
from quantize.errors import BadRequest
from quantize.layer_request import LayerRequest
from quantize.recipe import Format, Method, Recipe
from tests.oracles.raw_checkpoint import config, write


def test_what_is_left_open_is_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group size by the matrices, whose columns are 64 and 128, and the name by all of it."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "model")
    request, output, note = settle(LayerRequest(tmp_path / "model"))
    assert output == request.output == tmp_path / "model-gptq-4bit-g64"
    assert request.recipe.group_size == 64
    assert note == "groups of 64: the largest of 128, 64 and 32 that divides every matrix"
    int8 = Recipe(Format.INT8, Method.RTN, bits=8)
    settled = settle(LayerRequest(tmp_path / "model", int8, tmp_path / "there"))
    assert (settled.request.recipe.group_size, settled.note) == (-1, "")
    assert settled.output == tmp_path / "there"


def test_a_source_never_goes_with_what_is_replaced(tmp_path: Path) -> None:
    """It lies in the folder that the result takes the place of: as a folder, and through links."""
    output = tmp_path / "out"
    source = output / "source"
    output.mkdir()
    write(source)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    (output / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(output)
    for given in (source, tmp_path / "link" / "source"):
        for place in (output, tmp_path / "link"):
            with pytest.raises(BadRequest, match="holds the source, which must stay"):
                settle(LayerRequest(given, output=place, force=True))
    with pytest.raises(BadRequest, match="is the source itself"):
        settle(LayerRequest(source, output=tmp_path / "link" / "source", force=True))
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


TORCHLESS = """
import sys
from edgechat.cli.app import main
sys.modules["torch"] = None  # to import it is an error
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "says"),
    [
        (["--to", "gptq"], {"architectures": ["XForCausalLM"]}, 6, "XForCausalLM is not supported"),
        (["--to", "awq", "--group-size", "128"], {}, 2, "--group-size 128 doesn't divide the 64 columns"),
        (["--to", "gptq"], {"hidden_size": 48}, 2, "no group size of 128, 64 or 32 divides"),
        (["--to", "gptq", "-o", "source"], {}, 2, "is the source itself"),
        (["--to", "gptq", "--sequence-length", "500"], {}, 2, "more than the model's context of 128 tokens"),
        (["--to", "awq", "--calibration", "none.txt"], {}, 3, "no file at none.txt"),
        (["--to", "int8"], {"num_hidden_layers": None}, 4, "num_hidden_layers is missing"),
        (["--to", "int8", "--method", "rtn"], {}, 6, "are computed with torch"),  # nothing else is wrong
    ],
)
def test_what_needs_no_torch_is_refused_without(
    tmp_path: Path, arguments: list[str], changes: dict[str, object], code: int, says: str
) -> None:
    """Importing it takes seconds."""
    write(tmp_path / "source", model=config(**changes))
    done = subprocess.run(
        [sys.executable, "-c", TORCHLESS, "quantize", "source", *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
