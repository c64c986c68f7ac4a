"""One small runtime for all tests of this folder; each test finds it empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import LlamaCppRuntime, attention


@pytest.fixture(scope="session", params=[True, False], ids=["products", "fused"])
def products(request: pytest.FixtureRequest) -> bool:
    """Whether attention is computed product by product: both, whatever is faster here."""
    return bool(request.param)


@pytest.fixture(scope="session")
def loaded(starter_gguf: Path, *, products: bool) -> Iterator[LlamaCppRuntime]:
    """The starter model with 512 tokens of context for three sequences."""
    settings = LoadSettings(str(starter_gguf), n_ctx=512, n_batch=256, n_sequences=3, n_threads=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "products_are_faster", lambda: products)
        runtime = LlamaCppRuntime.load(settings)
    yield runtime
    runtime.close()


@pytest.fixture
def runtime(loaded: LlamaCppRuntime) -> LlamaCppRuntime:
    """The same, with no tokens in it."""
    for sequence in range(loaded.n_sequences):
        loaded.free(sequence)
    return loaded


@pytest.fixture(scope="session")
def gemma(gemma_gguf: Path) -> Iterator[LlamaCppRuntime]:
    """Gemma 3 270M: a sliding window of 512 tokens in five of six layers, long pieces, a BOS."""
    settings = LoadSettings(str(gemma_gguf), n_ctx=2048, n_batch=512, n_sequences=2, n_threads=2)
    runtime = LlamaCppRuntime.load(settings)
    yield runtime
    runtime.close()


@pytest.fixture(scope="session")
def prose(loaded: LlamaCppRuntime) -> list[int]:
    """Some 400 tokens of English."""
    text = (
        "The lighthouse stood at the end of a long spit of sand, and nobody in the village could say who had "
        "built it. On clear nights its lamp was seen from forty miles away; in fog it was useless, and the "
        "keeper rang a bell every other minute. Years later a railway came, then a road, and the ships went "
        "elsewhere. The keeper stayed. He wrote down the weather each morning, the birds each evening, and "
        "on Sundays the names of those who had come to look at the sea with him. "
    )
    return loaded.tokenizer.encode(text * 4)
