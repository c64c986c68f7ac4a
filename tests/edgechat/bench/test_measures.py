"""What is made of measured times, and the texts that are measured with."""

import pytest

from edgechat.bench import memory, texts
from edgechat.bench.plan import FULL, QUICK, median_ratio
from edgechat.bench.streaming import Evictions
from edgechat.bench.window import first_and_last, growth
from edgechat.records import Capabilities, ModelInfo


def info(kv_bytes: int) -> ModelInfo:
    return ModelInfo(
        name="m", path="m", architecture="m", quantization="m", n_vocab=1, n_layers=1, n_ctx_train=64,
        n_ctx=1000, n_params=1, size_bytes=1, kv_bytes_per_token=kv_bytes, eog_ids=(), chat_template=None,
        can=Capabilities(shift=True, rollback=-1, fork=True), backend="CPU", n_gpu_layers=0, n_threads=1,
        fingerprint="m",
    )  # fmt: skip


def test_rounds_are_compared_and_not_tokens() -> None:
    # Ten rounds of 8 tokens: 0.8 s each, the last five 1.2 s.
    at = [(8 * n, 0.8 * min(n, 5) + 1.2 * max(0, n - 5)) for n in range(11)]
    first, last = first_and_last(Evictions(at, 80), share=2)
    assert first == pytest.approx(0.1)
    assert last == pytest.approx(0.15)


def test_one_slow_round_among_many_does_not_count() -> None:
    seconds = [0.0]
    for n in range(20):
        seconds.append(seconds[-1] + (50.0 if n == 1 else 1.0))
    at = [(10 * n, second) for n, second in enumerate(seconds)]
    assert first_and_last(Evictions(at, 200), share=4) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("at", [[], [(8, 1.0)], [(8, 1.0), (8, 2.0)]])
def test_without_a_whole_round_there_is_no_figure(at: list[tuple[int, float]]) -> None:
    assert first_and_last(Evictions(at, 8)) == (0.0, 0.0)


def test_growth_is_since_the_window_filled() -> None:
    assert growth([200, 190, 205]) == pytest.approx(0.025)
    assert growth([]) == 0.0


def test_ratios_are_of_neighbouring_runs() -> None:
    # The machine slowed down to a tenth: medians of all runs would say 10, each pair says 2.
    assert median_ratio([20, 20, 2, 2, 2], [10, 10, 1, 1, 1]) == 2
    assert median_ratio([], []) == 0.0


def test_kv_types_begin_with_the_one_in_use() -> None:
    rows = memory.kv_types(info(17_000), "q8_0")
    assert [(row.kv_type, row.bytes_per_token, row.total_bytes) for row in rows] == [
        ("q8_0", 17_000, 17_000_000),
        ("f16", 32_000, 32_000_000),
        ("q4_0", 9_000, 9_000_000),
    ]


def test_every_kind_of_text_has_a_prompt() -> None:
    prompts = {kind: texts.prompt(kind) for kind in texts.KINDS}
    assert list(prompts) == ["edit", "quote", "json", "prose", "poem"]
    assert len(set(prompts.values())) == 5
    assert all(40 < len(text) < 2000 for text in prompts.values())


@pytest.mark.parametrize("sizes", [QUICK, FULL])
def test_medians_have_five_runs_and_windows_move(sizes) -> None:
    assert sizes.runs >= 5
    assert sizes.window_tokens >= 2 * sizes.window_ctx


def test_a_few_rounds_are_looked_at_where_there_are_few() -> None:
    # Twelve rounds; the first and the last are outliers: three of each side have the same median.
    seconds = [0.0]
    for n in range(12):
        seconds.append(seconds[-1] + {0: 9.0, 11: 5.0}.get(n, 1.0))
    at = [(10 * n, second) for n, second in enumerate(seconds)]
    assert first_and_last(Evictions(at, 120)) == pytest.approx((0.1, 0.1))
