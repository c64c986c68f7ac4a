"""A picture of a quantization's error, layer by layer, from its receipt: SVG, or PNG with extra "plot"."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from models.errors import UnsupportedModel
from quantize.errors import BadRequest, to_install

WIDTH, HEIGHT = 960, 540
LEFT, RIGHT, TOP, BOTTOM = 84, 150, 86, 64
LABEL_PX = 16
"""Of height that a label needs."""
MAX_TICKS = 12
SCALE = 2
"""Pixels of a PNG for each of SVG's."""

FONT = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', 'Liberation Sans', sans-serif"
INK, FAINT, GRID = "#222222", "#666666", "#e2e2e2"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#444444", "#7b3294")
"""That people tell apart who see colours otherwise (Okabe and Ito 2008), darkened where they are pale."""

Points = dict[int, float]
"""Error by layer."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """From a number to its place."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be made, before the work that it shall show.

    Raises:
        BadRequest: another ending than .svg or .png, or a folder that is not there or can't be written to.
        UnsupportedModel: a PNG, and what draws it is not installed.
    """
    if path.suffix.lower() not in {".svg", ".png"}:
        raise BadRequest(f"--plot {path}: a name that ends in .svg or .png belongs there")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BadRequest(f"--plot {path}: there is no folder {path.absolute().parent} to put a file into")
    if not os.access(path.absolute().parent, os.W_OK):
        raise BadRequest(f"--plot {path}: {path.absolute().parent} may not be written to")
    if path.suffix.lower() == ".png":
        _png("<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'/>")


def plot(receipt: Mapping[str, Any], path: Path) -> None:
    """Draw a receipt's errors; the file is replaced in one step.

    Args:
        receipt: as `edgechat-receipt.json` has it.
        path: ends in .svg or .png.

    Raises:
        BadRequest: the receipt has no errors, or the path is of another kind.
        UnsupportedModel: a PNG, and what draws it is not installed.
    """
    check_plot(path)
    drawn = svg(receipt)
    data = _png(drawn) if path.suffix.lower() == ".png" else drawn.encode()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def curves(receipt: Mapping[str, Any]) -> dict[str, Points]:
    """The errors of each kind of matrix, layer by layer; of a layer's experts the mean.

    Raises:
        BadRequest: there are none.
    """
    found: dict[str, dict[int, list[float]]] = {}
    layers = receipt.get("layers")
    for layer in layers if isinstance(layers, list) else ():
        for matrix in layer.get("matrices", ()):
            error = matrix.get("error")
            if isinstance(error, int | float) and math.isfinite(error) and error > 0:
                kind = str(matrix["name"]).rpartition(".")[2]
                found.setdefault(kind, {}).setdefault(int(layer["layer"]), []).append(float(error))
    if not found:
        raise BadRequest("the receipt has no errors of layers, so there is nothing to draw")
    return {
        kind: {layer: math.fsum(errors) / len(errors) for layer, errors in sorted(points.items())}
        for kind, points in found.items()
    }


def svg(receipt: Mapping[str, Any]) -> str:
    """The picture: layers from left to right, errors upwards on a logarithmic scale, a line for each kind of
    matrix with its name at the end.

    Raises:
        BadRequest: the receipt has no errors.
    """
    kinds = curves(receipt)
    layers = sorted({layer for points in kinds.values() for layer in points})
    errors = [error for points in kinds.values() for error in points.values()]
    low, high = _limits(min(errors), max(errors))
    x = _Axis(layers[0], max(layers[-1], layers[0] + 1), LEFT, WIDTH - RIGHT)
    y = _Axis(math.log10(low), math.log10(high), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}">',
        f"<title>{escape(_title(receipt))}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 34, _title(receipt), size=19, weight="bold"),
        _text(LEFT, 58, _subtitle(receipt), size=13.5, colour=FAINT),
        *_grid(x, y, layers, low, high),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "decoder layer", size=13.5, anchor="middle"),
        _text(24, (TOP + HEIGHT - BOTTOM) / 2, _y_label(receipt), size=13.5, anchor="middle", turned=True),
    ]
    places = _spread({kind: y.at(math.log10(list(points.values())[-1])) for kind, points in kinds.items()})
    rescued = _rescued(receipt)
    for number, (kind, points) in enumerate(kinds.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += _line(points, x, y, colour, [layer for layer, name in rescued if name == kind])
        end_x, end_y = x.at(list(points)[-1]), y.at(math.log10(list(points.values())[-1]))
        parts.append(
            f'<path d="M{end_x + 6:.1f} {end_y:.1f} L{WIDTH - RIGHT + 18} {places[kind]:.1f}" '
            f'stroke="{colour}" stroke-width="0.8" opacity="0.6"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 23, places[kind] + 4.5, kind, size=13.5, colour=colour))
    if rescued:
        parts.append(
            _text(
                WIDTH - RIGHT,
                HEIGHT - 18,
                "○ went otherwise than planned",
                size=12,
                anchor="end",
                colour=FAINT,
            )
        )
    return "\n".join([*parts, "</svg>\n"])


def _title(receipt: Mapping[str, Any]) -> str:
    recipe = receipt.get("recipe") or {}
    source = (receipt.get("source") or {}).get("name", "a model")
    form, method = str(recipe.get("format", "")).upper(), str(recipe.get("method", "")).upper()
    words = [form if method in {form, ""} or form == "INT8" else f"{form} by {method}"]
    if form == "INT8":
        words.append(str(recipe.get("scheme", "")).upper())
    elif form == "GGUF":
        words.append(str(recipe.get("type", "")))
    else:
        size = recipe.get("group_size")
        words.append(f"{recipe.get('bits')} bits")
        words.append("a scale for each row" if size == -1 else f"groups of {size}")
    return f"{source}: {', '.join(word for word in words if word)}"


def _subtitle(receipt: Mapping[str, Any]) -> str:
    words = []
    if isinstance(receipt.get("bits_per_weight"), int | float):
        words.append(f"{receipt['bits_per_weight']:.2f} bits per weight")
    found = receipt.get("evaluation")
    if isinstance(found, Mapping):
        words.append(f"perplexity {found['source_perplexity']:.2f} → {found['perplexity']:.2f}")
        words.append(f"KL divergence {found['mean_kl']:.4f}")
        words.append(f"same likeliest token {100 * found['top1']:.1f}%")
    return "  ·  ".join(words)


def _y_label(receipt: Mapping[str, Any]) -> str:
    return f"error of the {receipt.get('error_of', 'weights')} (mean square, relative)"


def _rescued(receipt: Mapping[str, Any]) -> list[tuple[int, str]]:
    return [
        (int(layer["layer"]), str(matrix["name"]).rpartition(".")[2])
        for layer in receipt["layers"]
        for matrix in layer["matrices"]
        if matrix.get("note")
    ]


def _limits(low: float, high: float) -> tuple[float, float]:
    """Powers of ten, or their two- and fivefold, around all errors."""
    steps = [factor * 10.0**power for power in range(-18, 6) for factor in (1, 2, 5)]
    below = max((step for step in steps if step <= low * 1.0001), default=low / 2)
    above = min((step for step in steps if step >= high * 0.9999), default=high * 2)
    return (below, above) if above > below else (below / 2, above * 2)


def _grid(x: _Axis, y: _Axis, layers: Sequence[int], low: float, high: float) -> list[str]:
    parts = []
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades <= 3 else (1,)
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for factor in factors:
            value = factor * 10.0**power
            if low * 0.9999 <= value <= high * 1.0001:
                at = y.at(math.log10(value))
                parts.append(_rule(LEFT, at, WIDTH - RIGHT, at))
                parts.append(_text(LEFT - 10, at + 4.5, f"{100 * value:.6g}%", size=12.5, anchor="end"))
    step = next(n for n in (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 1000) if len(layers) / n <= MAX_TICKS)
    for layer in range(layers[0], layers[-1] + 1):
        if layer % step == 0:
            at = x.at(layer)
            parts.append(_rule(at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 5, FAINT))
            parts.append(_text(at, HEIGHT - BOTTOM + 22, str(layer), size=12.5, anchor="middle"))
    parts.append(_rule(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, FAINT))
    return parts


def _line(points: Points, x: _Axis, y: _Axis, colour: str, rescued: Sequence[int]) -> list[str]:
    places = {layer: (x.at(layer), y.at(math.log10(error))) for layer, error in points.items()}
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places.values())
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" '
        'stroke-linejoin="round" stroke-linecap="round"/>'
    ]
    radius = 2.6 if len(points) <= 48 else 1.6
    parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{radius}" fill="{colour}"/>' for a, b in places.values()]
    parts += [
        f'<circle cx="{places[layer][0]:.1f}" cy="{places[layer][1]:.1f}" r="6" fill="none" '
        f'stroke="{INK}" stroke-width="1.4"/>'
        for layer in rescued
        if layer in places
    ]
    return parts


def _spread(places: Mapping[str, float]) -> dict[str, float]:
    """Labels from top to bottom, moved apart where they would overlap, and kept inside the picture."""
    ordered = sorted(places.items(), key=lambda entry: entry[1])
    found: list[float] = []
    for _, at in ordered:
        found.append(max(at, found[-1] + LABEL_PX) if found else at)
    excess = found[-1] - (HEIGHT - BOTTOM)
    if excess > 0:
        found = [at - excess for at in found]
        for number in range(len(found) - 2, -1, -1):  # those above go back to where they belong
            wanted = ordered[number][1]
            found[number] = min(max(found[number], wanted), found[number + 1] - LABEL_PX)
    return {kind: at for (kind, _), at in zip(ordered, found, strict=True)}


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = GRID) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, size: float, anchor: str = "start", colour: str = INK,
    weight: str = "normal", turned: bool = False,
) -> str:  # fmt: skip
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}"{turn}>{escape(text)}</text>'
    )


def _png(drawn: str) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise UnsupportedModel(
            f"a PNG is drawn with resvg-py: {to_install('plot')}; or give a name that ends in .svg"
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn, zoom=SCALE))
