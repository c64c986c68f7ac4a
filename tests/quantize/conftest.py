"""Checkpoints made of the real models, kept from one test run to the next."""

from pathlib import Path

import pytest

from tests.oracles.make_checkpoint import made


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
