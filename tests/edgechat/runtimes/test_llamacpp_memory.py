"""The arithmetic of fitting, without a model."""

import pytest

from edgechat.errors import ResourceError
from edgechat.runtimes.llamacpp import memory
from edgechat.runtimes.llamacpp.memory import MIB, Needs

# As llama.cpp writes for a model with window layers, no_alloc.
LOG = """\
print_info: n_layer               = 18
load_tensors:   CPU_REPACK model buffer size =     0.00 MiB
llama_context:        CPU  output buffer size =     5.00 MiB
llama_kv_cache:        CPU KV buffer size =     0.00 MiB
llama_kv_cache: size =   24.00 MiB (  8192 cells, 3 layers, 5/1 seqs), K (f16): 12.00 MiB, V (f16): 12.00 MiB
llama_kv_cache: size =  120.00 MiB (  8192 cells, 15 layers, 5/1 seqs), K (f16): 60.00 MiB, V (f16): 60.00 MiB
sched_reserve:        CPU compute buffer size =   514.51 MiB
""".splitlines()


def test_sizes_are_read_from_the_log() -> None:
    assert memory.parse(LOG, 1000) == Needs(1000, 144 * MIB, int(519.51 * MIB), 8192)
    assert memory.kv_bytes_per_token(LOG) == 18432
    assert memory.layer_count(LOG) == 18
    assert memory.layer_count(["llama_model_loader: - kv   9:    llama.block_count u32     = 30"]) == 30


def test_a_log_of_another_shape_says_nothing() -> None:
    for lines in ([], ["llama_kv_cache: size = many MiB"], ["CPU KV buffer size = 12 MiB"]):
        assert memory.parse(lines, 1000) is None
        assert memory.kv_bytes_per_token(lines) is None
        assert memory.layer_count(lines) is None
        assert memory.offloaded_layers(lines) == 0


def test_offloaded_layers() -> None:
    assert memory.offloaded_layers(["load_tensors: offloaded 13/25 layers to GPU"]) == 13


def test_what_fits_is_not_refused() -> None:
    needs = Needs(weights=1000 * MIB, kv=800 * MIB, other=200 * MIB, cells=8192)
    memory.check(needs, 2256 * MIB, "model", 8192)
    with pytest.raises(ResourceError):
        memory.check(needs, 2255 * MIB, "model", 8192)


def test_the_message_has_the_numbers_and_the_remedy() -> None:
    needs = Needs(weights=1000 * MIB, kv=800 * MIB, other=200 * MIB, cells=8192)
    with pytest.raises(ResourceError) as caught:
        memory.check(needs, 1856 * MIB, "model", 8192)
    # 400 MiB are left for the cache: half of it.
    assert str(caught.value) == (
        "model with 8192 tokens of context needs 2.0 GiB of memory, 1.8 GiB are free: try --ctx 4096"
    )
    with pytest.raises(ResourceError, match=r"--ctx 2048$"):
        memory.check(needs, 1856 * MIB, "model", 2048)
    with pytest.raises(ResourceError) as caught:
        memory.check(needs, 600 * MIB, "model", 8192)
    assert str(caught.value) == (
        "model with 8192 tokens of context needs 2.0 GiB of memory, 600 MiB are free: "
        "its weights alone are 1000 MiB; choose a smaller model or type"
    )


@pytest.mark.parametrize(
    ("room_mib", "tokens"), [(2000, 0), (1999, 7936), (1600, 4096), (1250, 512), (1249, 0), (1200, 0), (0, 0)]
)
def test_the_context_that_fits(room_mib: int, tokens: int) -> None:
    needs = Needs(weights=1000 * MIB, kv=800 * MIB, other=200 * MIB, cells=8192)
    assert memory.fitting_ctx(needs, room_mib * MIB) == tokens


def test_layers_to_try_after_all_did_not_fit() -> None:
    # 33 layers of 120 MiB, of which 24 fit into 2,900 MiB.
    weights = 33 * 120 * MIB * 6 // 7
    assert memory.gpu_attempts(-1, 32, weights, 2900 * MIB) == [24, 16, 10, 6, 4, 0]
    assert memory.gpu_attempts(20, 32, weights, 2900 * MIB) == [16, 10, 6, 4, 2, 0]
    assert memory.gpu_attempts(-1, 32, weights, 100 * MIB) == [0]
    assert memory.gpu_attempts(-1, 32, weights, 0) == [26, 17, 11, 7, 4, 0]  # a device that doesn't tell
    assert memory.gpu_attempts(-1, None, weights, 2900 * MIB) == [0]


def test_sizes_for_people() -> None:
    assert memory.gib(310 * MIB) == "310 MiB"
    assert memory.gib(3 * 2**30 + 2**29) == "3.5 GiB"
