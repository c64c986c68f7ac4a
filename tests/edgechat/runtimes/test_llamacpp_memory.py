"""What the log says of sizes and layers, without a model."""

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


def test_layers_to_try_after_all_did_not_fit() -> None:
    # 33 layers of 120 MiB, of which 24 fit into 2,900 MiB.
    weights = 33 * 120 * MIB * 6 // 7
    assert memory.gpu_attempts(-1, 32, weights, 2900 * MIB) == [24, 16, 10, 6, 4, 0]
    assert memory.gpu_attempts(20, 32, weights, 2900 * MIB) == [16, 10, 6, 4, 2, 0]
    assert memory.gpu_attempts(-1, 32, weights, 100 * MIB) == [0]
    assert memory.gpu_attempts(-1, 32, weights, 0) == [26, 17, 11, 7, 4, 0]  # a device that doesn't tell
    assert memory.gpu_attempts(-1, None, weights, 2900 * MIB) == [0]
