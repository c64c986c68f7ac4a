"""Checkpoints made of the real models, kept from one test run to the next."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quantize.layers import LayerRequest, run
from tests.oracles.make_checkpoint import made
from tests.oracles.raw_checkpoint import write


@pytest.fixture(scope="session")
def smollm2_folder(request: pytest.FixtureRequest, starter_gguf: Path) -> Path:
    """SmolLM2-135M-Instruct as transformers saves it, in bfloat16."""
    return made(starter_gguf, request.config.cache.mkdir("smollm2-checkpoint"))


@pytest.fixture(scope="session")
def gemma_folder(request: pytest.FixtureRequest, gemma_gguf: Path) -> Path:
    """Gemma 3 270M as transformers saves it, in bfloat16."""
    return made(gemma_gguf, request.config.cache.mkdir("gemma-checkpoint"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers and random weights in bfloat16, with a tokenizer and a chat template."""
    from tests.oracles import hf_models
    from tests.oracles.hf_configs import build

    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    size = hf_models.save_bpe(folder, hf_models.LLAMA3)
    hf_models.save_model(
        folder,
        build("LlamaConfig", {"vocab_size": size, "num_hidden_layers": 4, "intermediate_size": 128}),
        "bfloat16",
    )
    return folder


@pytest.fixture
def stopped_after_two_layers(monkeypatch: pytest.MonkeyPatch) -> Callable[[LayerRequest], None]:
    """Begins a run, and interrupts it in its third layer."""

    def begin(request: LayerRequest) -> None:
        from quantize.streaming import Streamer

        plain = Streamer._layer

        def interrupted(self: Streamer, index: int) -> None:
            if index == 2:
                raise KeyboardInterrupt
            plain(self, index)

        with monkeypatch.context() as patch:
            patch.setattr(Streamer, "_layer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(request)

    return begin


@pytest.fixture(scope="session")
def plain_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of random weights as a GGUF file in float32."""
    from quantize.pipeline import Request
    from quantize.pipeline import run as make
    from quantize.plan import target_of

    folder = write(tmp_path_factory.mktemp("plain") / "model")
    return make(Request(folder, target_of("f32"), folder.parent / "f32.gguf")).path
