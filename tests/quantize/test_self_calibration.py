"""What a model writes itself to be calibrated with: whose turn it is, the draw, and real texts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantize.sample_native import Writers, draw
from quantize.source import open_source


def test_each_kind_gets_its_share() -> None:
    """The kind that lacks most is next; its openings are taken in turn; when there is enough it ends."""
    writers = Writers([[[1], [2]], [[7, 8]]], wanted=[10, 10], seed=3)
    begun = []
    while (document := writers.next()) is not None:
        begun.append((document.kind, list(document.tokens)))
        document.tokens += [5] * (9 if document.kind else 3)
    assert begun == [(0, [1]), (1, [7, 8]), (0, [2]), (0, [1])]
    assert writers.share == 1.0
    only = Writers([[[1]]], wanted=[4], seed=3)
    assert only.next() is not None
    assert only.share == 0.25


def test_texts_of_one_seed_differ_and_two_runs_do_not() -> None:
    """Every text has its own random numbers, which depend on nothing but the seed and its number."""

    def numbers(seed: int) -> list[float]:
        writers = Writers([[[1]]], wanted=[3], seed=seed)
        documents = [writers.next() for _ in range(3)]
        return [one.random.random() for one in documents if one is not None]

    assert numbers(4) == numbers(4)
    assert len({*numbers(4), *numbers(5)}) == 6


def test_tokens_come_as_often_as_the_model_says() -> None:
    """The chances are softmax's, at temperature 1."""
    logits = np.log(np.array([0.5, 0.2, 0.0625, 0.2375], np.float32)) + 40
    random = np.random.default_rng(0)
    drawn = np.bincount([draw(logits, random) for _ in range(20_000)], minlength=4) / 20_000
    assert np.abs(drawn - [0.5, 0.2, 0.0625, 0.2375]).max() < 0.012
    certain = np.array([-1e30, 3.0, -1e30], np.float32)
    assert {draw(certain, random) for _ in range(50)} == {1}


@pytest.mark.timeout(600)
def test_a_real_model_writes(starter_gguf: Path, tmp_path: Path) -> None:
    """Whole windows, half of them chat; the same seed gives the same, another one other texts."""
    from quantize.calibration import FolderTokenizer
    from quantize.self_calibration import written

    with open_source(starter_gguf) as source:
        tokenizer = FolderTokenizer(source.folder)

        def samples(seed: int) -> np.ndarray:
            shares: list[float] = []
            found = written(
                source,
                tokenizer,
                tmp_path / "out",
                count=4,
                length=48,
                seed=seed,
                threads=1,
                told=shares.append,
            )
            assert (found.n_chat, found.source) == (2, f"self, seed {seed}")
            assert shares == sorted(shares)
            assert 0 < shares[0] < shares[-1] <= 1
            return found.tokens

        one, two, other = samples(7), samples(7), samples(8)
    assert one.shape == (4, 48)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    begins = tokenizer.encode("<|im_start|>", special=False)[0]
    assert begins in one[2:].ravel().tolist()
    assert begins not in one[0].tolist()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oracle
@pytest.mark.timeout(600)
def test_a_run_with_it(tiny_folder: Path, tmp_path: Path) -> None:
    """A folder is converted for that time, and nothing of it is left; the receipt says whose text it was."""
    from quantize.layers import LayerRequest, run
    from quantize.recipe import Recipe

    output = tmp_path / "out"
    request = LayerRequest(
        tiny_folder, Recipe(), output, self_seed=1, samples=6, length=32, threads=1, evaluated=False
    )
    result = run(request)
    assert result.receipt.calibration is not None
    assert result.receipt.calibration["text"] == "self, seed 1"
    assert result.receipt.calibration["samples"] == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.oracle
@pytest.mark.timeout(600)
def test_a_stopped_run_goes_on_with_what_was_written(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_after_two_layers: Callable[[object], None],
) -> None:
    """The model doesn't write again; other settings are another text."""
    from dataclasses import replace

    from quantize import self_calibration
    from quantize.errors import BadRequest
    from quantize.layers import LayerRequest, run
    from quantize.recipe import Recipe

    request = LayerRequest(
        tiny_folder, Recipe(), tmp_path / "out", self_seed=1, samples=6, length=32, threads=1, evaluated=False
    )
    stopped_after_two_layers(request)
    with pytest.raises(BadRequest, match="was begun with another source, other settings"):
        run(replace(request, resume=True, self_seed=2))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it writes again")

    monkeypatch.setattr(self_calibration, "written", never)
    assert run(replace(request, resume=True)).path == tmp_path / "out"
