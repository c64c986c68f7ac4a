"""The lists of what llama.cpp knows, against the gguf package's."""

import gguf

from models import architectures as known


def test_every_architecture_of_the_gguf_package_is_known() -> None:
    theirs = set(gguf.MODEL_ARCH_NAMES.values())
    # gguf-py names these; llama.cpp has no code that would load them.
    assert theirs - known.ARCHITECTURES == {"gptj"}


def test_the_subsets_are_subsets() -> None:
    for subset in (
        known.NOT_LANGUAGE_MODELS,
        known.RECURRENT,
        known.SOME_LAYERS_WITHOUT_ATTENTION,
        known.SLIDING_WINDOW,
        known.KEYS_AND_VALUES_MAY_DIFFER,
        known.ROTATE_ALL,
        known.UNIFORM_LAYERS,
    ):
        assert set(subset) <= known.ARCHITECTURES
