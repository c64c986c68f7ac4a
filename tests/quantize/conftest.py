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
