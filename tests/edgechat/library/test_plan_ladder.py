"""What gives way and in which order, on models made of arithmetic."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.hardware import MARGIN
from edgechat.library import ladder
from edgechat.library.ladder import MIB, Verdict
from edgechat.library.needs import Available, Needs
from edgechat.records import LoadSettings

PER_TOKEN = {"f16": 0.2, "q8_0": 0.1, "q4_0": 0.05}  # MiB
LAYERS = 10


def requirements(settings: LoadSettings, draft: bool) -> Needs:
    """1,000 MiB of weights, 0.2 MiB of cache for a token, 0.2 MiB of results for a token of a batch."""
    on_gpu = settings.n_gpu_layers / LAYERS
    kv = settings.n_ctx * PER_TOKEN[settings.kv_type]
    compute = settings.n_batch * 0.2
    return Needs(
        engine=100 * MIB,
        weights=1000 * MIB,
        repacked=0,
        cold=int(1000 * on_gpu * MIB),
        kv=int(kv * (1 - on_gpu) * MIB),
        compute=int(compute * MIB),
        output=0,
        draft=200 * MIB if draft else 0,
        gpu=int((1000 + kv + compute) * on_gpu * MIB) if on_gpu else 0,
    )


def climb(
    free: int, *, vram: int = 0, draft: bool = False, auto: int = 4096, shared: bool = False, **asked: object
) -> ladder.Plan:
    """A plan with so many MiB free above the margin."""
    settings = msgspec.structs.replace(LoadSettings("m.gguf", n_gpu_layers=0), **asked)
    available = Available(free * MIB + MARGIN, vram * MIB + MARGIN if vram else 0, shared)
    return ladder.ladder(requirements, available, settings, n_ctx=settings.n_ctx or auto, draft=draft)


def test_what_fits_is_left_alone() -> None:
    # 100 + 1000 + 819.2 + 102.4
    plan = climb(2022)
    assert plan.verdict is Verdict.FITS
    assert plan.steps == ()
    assert plan.settings.n_ctx == 4096
    assert ladder.note(plan) == ""
    assert climb(2021).verdict is Verdict.WITH_SETTINGS


@pytest.mark.parametrize(
    ("free", "kv_type", "batch", "ctx"),
    [
        (2021, "q8_0", 512, 4096),
        (1612, "q8_0", 512, 4096),  # 100 + 1000 + 409.6 + 102.4
        (1611, "q8_0", 256, 4096),
        (1560, "q8_0", 128, 4096),  # 100 + 1000 + 409.6 + 51.2 is 1560.8
        (1535, "q8_0", 128, 3840),  # 100 + 1000 + 409.6 + 25.6 is 1535.2; a step of context is 25.6
        (1331, "q8_0", 128, 2048),
        (1330, "q8_0", 128, 1792),  # no draft, no GPU: the last rung
        (1177, "q8_0", 128, 512),
    ],
)
def test_the_rungs_in_turn(free: int, kv_type: str, batch: int, ctx: int) -> None:
    plan = climb(free)
    assert plan.verdict is Verdict.WITH_SETTINGS
    assert (plan.settings.kv_type, plan.settings.n_batch, plan.settings.n_ctx) == (kv_type, batch, ctx)
    assert plan.needs == requirements(plan.settings, False)
    assert plan.asked == requirements(LoadSettings("m.gguf", n_gpu_layers=0, n_ctx=4096), False)


def test_below_the_last_rung_it_does_not_fit() -> None:
    plan = climb(1176)
    assert plan.verdict is Verdict.DOES_NOT
    assert plan.settings.n_ctx == 512
    assert 0 < plan.short <= MIB
    assert ladder.refusal(plan, "m") == (
        "m needs 2.1 GB, or 1.2 GB at the least (the context's memory in q8_0 instead of f16, batches of 128 "
        "instead of 512 tokens, 512 instead of 4,096 tokens of context); 1.5 GB of memory can be taken, of "
        "which 268.4 MB must stay free; its weights alone are 1.0 GB: choose a smaller model"
    )
    assert ladder.refusal(plan, "m", smaller="q3_k_m (about 700.0 MB)").endswith(
        "take a smaller quantization, such as q3_k_m (about 700.0 MB), or a smaller model"
    )


def test_each_step_is_said_once() -> None:
    assert climb(1177).steps == (
        "the context's memory in q8_0 instead of f16",
        "batches of 128 instead of 512 tokens",
        "512 instead of 4,096 tokens of context",
    )
    assert ladder.note(climb(1612)) == (
        "memory is short (2.1 GB needed, 1.7 GB can be had): the context's memory in q8_0 instead of f16"
    )


def test_what_the_person_chose_stays() -> None:
    fixed = ("kv_type", "n_batch")
    plan = climb(1612, fixed=fixed)
    assert (plan.settings.kv_type, plan.settings.n_batch) == ("f16", 512)
    assert plan.settings.n_ctx == 2048  # 100 + 1000 + 409.6 + 102.4
    assert climb(1612, n_ctx=4096, fixed=fixed).verdict is Verdict.DOES_NOT  # a context that was asked for
    assert climb(1202, fixed=fixed).verdict is Verdict.DOES_NOT


def test_the_context_that_would_fit_is_named() -> None:
    asked = {"n_ctx": 4096, "fixed": ("kv_type", "n_batch")}
    plan = climb(1612, **asked)
    assert ladder.context_that_fits(requirements, plan) == 2048
    assert ladder.context_that_fits(requirements, plan, 1024) == 1024
    assert ladder.refusal(plan, "m", longest_ctx=2048).endswith("; try --ctx 2048")
    assert ladder.context_that_fits(requirements, climb(1250, **asked)) == 0


def test_no_context_is_asked_of_that_would_not_be_proposed() -> None:
    asked_of = []

    def asking(settings: LoadSettings, draft: bool) -> Needs:
        asked_of.append(settings.n_ctx)
        return requirements(settings, draft)

    plan = climb(1500, n_ctx=2**24, kv_type="q8_0", fixed=("kv_type",))
    assert not plan.fits
    assert ladder.context_that_fits(asking, plan, 2000) == 2000
    assert max(asked_of) <= 2000 + 256


def test_layers_leave_the_gpu_before_the_context_gets_uncomfortable() -> None:
    # All on the GPU: 1000 + 204.8 + 25.6 MiB with the least cache, batch and 2,048 tokens.
    plan = climb(4000, vram=1000, n_gpu_layers=10, draft=True)
    assert plan.verdict is Verdict.WITH_SETTINGS
    assert plan.settings.n_gpu_layers == 8  # 8/10 of 1230.4 is 984.3
    assert plan.settings.n_ctx == 2048
    assert plan.draft
    assert "8 of 10 layers on the GPU; the CPU runs the rest" in plan.steps


def test_no_layer_where_the_gpu_has_no_room() -> None:
    plan = climb(4000, vram=50, n_gpu_layers=10)
    assert plan.settings.n_gpu_layers == 0
    assert plan.needs.gpu == 0
    assert "no layers on the GPU; the CPU runs the rest" in plan.steps


def test_the_draft_goes_before_the_context_gets_uncomfortable() -> None:
    plan = climb(1531, draft=True)  # 100 + 1000 + 204.8 + 25.6 + 200 is 1530.4
    assert plan.draft
    plan = climb(1530, draft=True)
    assert not plan.draft
    assert plan.steps[-1] == "no draft model"
    assert climb(1330, draft=True).settings.n_ctx == 1792
    assert climb(1530, draft=True, fixed=("draft",)).draft


def test_a_gpu_that_shares_the_memory_takes_from_it() -> None:
    # 100 MiB for the engine, and 1000 + 819.2 + 102.4 on the GPU; the compute buffer is here too.
    assert climb(2124, vram=4000, shared=True, n_gpu_layers=10).verdict is Verdict.FITS
    assert climb(2123, vram=4000, shared=True, n_gpu_layers=10).verdict is Verdict.WITH_SETTINGS


def test_a_rung_that_can_not_be_made_is_skipped() -> None:
    def no_quantized_cache(settings: LoadSettings, draft: bool) -> Needs | None:
        return requirements(settings, draft) if settings.kv_type == "f16" else None

    asked = LoadSettings("m.gguf", n_gpu_layers=0)
    plan = ladder.ladder(no_quantized_cache, Available(1612 * MIB + MARGIN), asked, n_ctx=4096)
    assert plan.settings.kv_type == "f16"
    assert plan.settings.n_ctx == 2304  # 100 + 1000 + 460.8 + 25.6
    with pytest.raises(ValueError, match="no such context"):
        ladder.ladder(lambda settings, draft: None, Available(0), asked, n_ctx=4096)


@given(
    free=st.integers(0, 3000),
    gpu=st.just((0, 0)) | st.tuples(st.integers(1, 2000), st.integers(0, LAYERS)),
    auto=st.integers(2, 128).map(lambda blocks: blocks * 256),
    draft=st.booleans(),
    batch=st.sampled_from([32, 128, 256, 512]),
)
def test_a_plan_that_fits_fits_and_no_longer_context_would(
    free: int, gpu: tuple[int, int], auto: int, *, draft: bool, batch: int
) -> None:
    vram, layers = gpu
    plan = climb(free, vram=vram, n_gpu_layers=layers, auto=auto, draft=draft, n_batch=batch)
    assert plan.fits == (plan.short == 0) == ladder.fits(plan.needs, plan.available)
    assert plan.needs == requirements(plan.settings, plan.draft)
    assert plan.settings.n_batch <= batch
    assert plan.settings.n_ctx <= auto
    assert plan.verdict is not Verdict.WITH_SETTINGS or plan.steps
    if plan.fits and plan.settings.n_ctx < auto and plan.settings.n_gpu_layers == layers:
        longer = msgspec.structs.replace(plan.settings, n_ctx=plan.settings.n_ctx + 256)
        assert plan.draft != draft or not ladder.fits(requirements(longer, plan.draft), plan.available)


@pytest.mark.parametrize(
    ("held", "available", "huge", "mapped"),
    [
        (500 * MIB, 1000 * MIB, True, False),
        (500 * MIB, 1000 * MIB, False, True),
        (600 * MIB, 1000 * MIB, True, True),  # more than PLENTY of it
        (599 * MIB, 1000 * MIB, True, False),
        (200 * MIB, 400 * MIB, True, True),  # the margin would not stay free
    ],
)
def test_weights_are_read_where_memory_is_plentiful(
    held: int, available: int, huge: bool, mapped: bool
) -> None:
    chosen = ladder.mapping(LoadSettings("m.gguf"), held, Available(available), huge_pages=huge)
    assert chosen.use_mmap is mapped


@pytest.mark.parametrize("asked", [True, False])
def test_who_asks_for_a_mapping_has_his_way(asked: bool) -> None:
    settings = LoadSettings("m.gguf", use_mmap=asked)
    for huge in (True, False):
        assert ladder.mapping(settings, 2**40, 2**30, huge_pages=huge) == settings
