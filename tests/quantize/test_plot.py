"""The picture of a receipt: what is drawn is what the receipt says, read back from the picture itself."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from models.errors import UnsupportedModel
from quantize.errors import BadRequest
from quantize.plot import check_plot, plot, svg

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def receipt(n_layers: int = 12, **more: Any) -> dict[str, Any]:
    """Errors that differ by layer and kind."""
    layers = [
        {
            "layer": layer,
            "matrices": [
                {"name": f"mlp.{kind}", "error": 0.001 * (number + 1) * 1.3**layer}
                for number, kind in enumerate(KINDS)
            ],
        }
        for layer in range(n_layers)
    ]
    recipe = {"format": "gptq", "method": "gptq", "bits": 4, "group_size": 64}
    return {
        "source": {"name": "a <model> & more"},
        "recipe": recipe,
        "bits_per_weight": 4.61,
        "error_of": "outputs",
        "layers": layers,
        "evaluation": {"source_perplexity": 19.87, "perplexity": 21.9, "mean_kl": 0.118, "top1": 0.82},
        **more,
    }


def drawn(record: dict[str, Any]) -> ET.Element:
    """The picture, parsed."""
    return ET.fromstring(svg(record))


def texts(picture: ET.Element) -> list[str]:
    """All that is written in it."""
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def scales(picture: ET.Element) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(number, place) of the ticks of both axes, by what is written at them."""
    x, y = [], []
    for element in picture.iter(f"{SVG}text"):
        text = element.text or ""
        if re.fullmatch(r"\d+", text):
            x.append((float(text), float(element.attrib["x"])))
        elif re.fullmatch(r"[\d.e-]+%", text):
            y.append((math.log10(float(text[:-1]) / 100), float(element.attrib["y"]) - 4.5))
    return x, y


def between(ticks: list[tuple[float, float]], place: float) -> float:
    """The number at a place, by the first and the last tick."""
    (low, start), (high, stop) = ticks[0], ticks[-1]
    return low + (place - start) / (stop - start) * (high - low)


def test_points_stand_where_the_axes_say() -> None:
    """Each kind's line, from left to right."""
    record = receipt()
    picture = drawn(record)
    x, y = scales(picture)
    lines = list(picture.iter(f"{SVG}polyline"))
    assert len(lines) == len(KINDS)
    for number, line in enumerate(lines):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        assert len(points) == 12
        for layer, (across, up) in enumerate(points):
            assert between(x, across) == pytest.approx(layer, abs=0.01)
            expected = 0.001 * (number + 1) * 1.3**layer
            assert 10 ** between(y, up) == pytest.approx(expected, rel=0.01)
    assert set(KINDS) <= set(texts(picture))


def test_what_is_written() -> None:
    """The model, how it was quantized, what it cost; nothing of it can break out of the picture."""
    written = texts(drawn(receipt()))
    assert "a <model> & more: GPTQ, 4 bits, groups of 64" in written
    (line,) = [text for text in written if "perplexity" in text]
    assert "4.61 bits per weight" in line
    assert "perplexity 19.87 → 21.90" in line
    recipe = {"format": "int8", "method": "rtn", "scheme": "w8a8"}
    assert "a <model> & more: INT8, W8A8" in texts(drawn(receipt(recipe=recipe, evaluation=None)))


def test_labels_never_overlap() -> None:
    """Lines that end at one place."""
    record = receipt()
    for layer in record["layers"]:
        for matrix in layer["matrices"]:
            matrix["error"] = 0.01
    picture = drawn(record)
    places = sorted(float(e.attrib["y"]) for e in picture.iter(f"{SVG}text") if e.text in KINDS)
    assert all(b - a >= 14 for a, b in itertools.pairwise(places))
    assert 0 < places[0] < places[-1] < 540


def test_experts_are_drawn_as_one_line() -> None:
    """Their mean."""
    matrices = [{"name": f"mlp.experts.{i}.up_proj", "error": error} for i, error in enumerate((0.01, 0.03))]
    record = receipt(layers=[{"layer": n, "matrices": matrices} for n in range(3)])
    picture = drawn(record)
    (line,) = picture.iter(f"{SVG}polyline")
    _, y = scales(picture)
    up = float(line.attrib["points"].split()[0].split(",")[1])
    assert 10 ** between(y, up) == pytest.approx(0.02, rel=0.01)


def test_one_layer_and_no_errors(tmp_path: Path) -> None:
    """A picture of one layer is one; of none there is none."""
    assert len(list(drawn(receipt(1)).iter(f"{SVG}polyline"))) == len(KINDS)
    for layers in ([], [{"layer": 0, "matrices": [{"name": "q", "error": None}]}]):
        with pytest.raises(BadRequest, match="no errors of layers"):
            plot(receipt(layers=layers), tmp_path / "x.svg")
    assert list(tmp_path.iterdir()) == []


def test_files(tmp_path: Path) -> None:
    """SVG needs nothing; a PNG is twice as wide, and nobody takes another ending for a picture."""
    plot(receipt(), tmp_path / "x.svg")
    ET.parse(tmp_path / "x.svg")
    for name in ("x.pdf", "x", "gone/x.svg"):
        with pytest.raises(BadRequest, match="--plot"):
            check_plot(tmp_path / name)
    pytest.importorskip("resvg_py")
    plot(receipt(), tmp_path / "x.PNG")
    raw = (tmp_path / "x.PNG").read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")) == (1920, 1080)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.PNG", "x.svg"]


def test_a_png_without_what_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with both ways out, before any work."""
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(UnsupportedModel, match=r"'\.\[plot\]'.* or give a name that ends in .svg"):
        check_plot(tmp_path / "x.png")
    check_plot(tmp_path / "x.svg")


def test_a_stored_receipt_is_drawn(tmp_path: Path) -> None:
    """As JSON gives it back."""
    assert svg(json.loads(json.dumps(receipt()))) == svg(receipt())
