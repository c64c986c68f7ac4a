"""Runs that go layer by layer, on tiny models: what is written, what each layer sees, what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import BrokenModelFile, UnsupportedModel
from quantize.errors import BadRequest, NotEnoughDisk, NotEnoughMemory, OutputExists, SourceNotFound
from quantize.layer_plan import LayerPlan
from quantize.layers import LayerRequest, Silent, run
from quantize.recipe import Format, Method, Order, Recipe, Scheme
from tests.oracles import hf_models
from tests.oracles.hf_configs import CONVERTIBLE

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]


def request_for(folder: Path, output: Path, recipe: Recipe | None = None, **changes: object) -> LayerRequest:
    """A small run without the comparison at its end."""
    request = LayerRequest(
        folder, recipe or Recipe(), output, samples=4, length=32, evaluated=False, threads=1
    )
    return replace(request, **changes)  # type: ignore[arg-type]


AWQ = Recipe(Format.AWQ, Method.AWQ)
INT8 = Recipe(Format.INT8, Method.RTN, bits=8)
W8A8 = replace(INT8, scheme=Scheme.W8A8, smooth=True)
SOLVED = replace(INT8, method=Method.GPTQ)
SOLVED_W8A8 = replace(W8A8, method=Method.GPTQ)


def test_a_gptq_checkpoint(tiny_folder: Path, tmp_path: Path) -> None:
    """Everything a reader looks for; what is no matrix is there bit by bit."""
    import torch
    from safetensors.torch import load_file

    result = run(request_for(tiny_folder, tmp_path / "out"))
    assert result.path == tmp_path / "out"
    assert list(tmp_path.iterdir()) == [result.path]
    source = load_file(tiny_folder / "model.safetensors")
    written = load_file(result.path / "model.safetensors")
    matrices = {name for name in source if name.endswith("_proj.weight")}
    assert len(matrices) == 28
    for name, tensor in source.items():
        if name not in matrices:
            assert torch.equal(written[name], tensor), name
            continue
        module = name.removesuffix(".weight")
        rows, columns = tensor.shape
        assert name not in written
        assert written[f"{module}.qweight"].shape == (columns // 8, rows)
        assert written[f"{module}.qzeros"].shape == (columns // 64, rows // 8)
        assert written[f"{module}.scales"].shape == (columns // 64, rows)
        assert written[f"{module}.scales"].dtype is torch.float16
        assert written[f"{module}.g_idx"].tolist() == [k // 64 for k in range(columns)]
    config = json.loads((result.path / "config.json").read_text())
    before = json.loads((tiny_folder / "config.json").read_text())
    quantization = config.pop("quantization_config")
    assert config == before
    assert json.loads((result.path / "quantize_config.json").read_text()) == quantization
    assert quantization["bits"] == 4
    assert quantization["group_size"] == 64
    assert quantization["sym"] is True
    assert quantization["desc_act"] is False
    assert quantization["checkpoint_format"] == "gptq"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (result.path / name).read_bytes() == (tiny_folder / name).read_bytes()
    assert result.notes == ("groups of 64: the largest of 128, 64 and 32 that divides every matrix",)


def test_a_matrix_sees_what_the_quantized_ones_before_it_leave(tiny_folder: Path, tmp_path: Path) -> None:
    """Layer 2's integers are those that GPTQ gives on inputs that transformers computes, with the layers
    before it and its own earlier matrices as they were written. An error in what is added to what goes by
    costs as much as the norm that comes next makes of it."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.weights import open_weights
    from quantize.calibration import FolderTokenizer, bundled, samples
    from quantize.methods import gptq
    from quantize.methods.grid import GridSettings

    result = run(request_for(tiny_folder, tmp_path / "out"))
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    with open_weights(result.path) as weights, torch.no_grad():
        for index in (0, 1):
            for name, tensor in weights.layer(index).items():
                model.get_parameter(f"model.layers.{index}.{name}").copy_(tensor)
        written = weights.layer(2)
    tokens = torch.from_numpy(samples(bundled(), FolderTokenizer(tiny_folder), count=4, length=32).tokens)
    layer = model.model.layers[2]
    groups = (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.o_proj",),
        ("mlp.gate_proj", "mlp.up_proj"),
        ("mlp.down_proj",),
    )
    settings = gptq.GPTQSettings(GridSettings(4, 64), damping=0.03, own_damping=True, refit=True)
    # Where what goes by is read off before each matrix that adds to it.
    goes_by = {"self_attn.o_proj": "input_layernorm", "mlp.down_proj": "post_attention_layernorm"}
    for group in groups:
        seen: list[torch.Tensor] = []
        watched = [goes_by[group[0]], group[0]] if group[0] in goes_by else [group[0]]
        hooks = [
            layer.get_submodule(name).register_forward_pre_hook(
                lambda module, args, seen=seen: seen.append(args[0].flatten(0, 1).double())
            )
            for name in watched
        ]
        with torch.no_grad():
            model(tokens)
        for hook in hooks:
            hook.remove()
        x = seen[-1]
        costs = torch.ones(len(x), 1, dtype=torch.float64)
        if len(seen) > 1:
            squares = layer.get_submodule(group[0]).weight.detach().double().square().mean(0)
            after = seen[0].square().mean(1) + x.square() @ squares
            costs = 1 / (after[:, None] + model.config.rms_norm_eps)
        for name in group:
            weight = layer.get_submodule(name).weight.detach()
            solved = gptq.quantize_matrix(weight, ((x * costs).T @ x / len(x)).float(), settings)
            # Another integer moves a weight by an eighth or more; a scale's last digit by a thousandth.
            same = np.isclose(solved.matrix.dense(), written[f"{name}.weight"].numpy(), rtol=2e-3, atol=1e-7)
            assert same.mean() > 0.98, name
        with torch.no_grad():
            for name in group:
                layer.get_submodule(name).weight.copy_(written[f"{name}.weight"])


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(bits=8, symmetric=False, checkpoint_format="gptq_v2"),
        Recipe(bits=3, group_size=32),
        Recipe(order=Order.CLASSIC, group_size=32),
        Recipe(group_size=-1),
        Recipe(method=Method.RTN),
        AWQ,
        INT8,
        W8A8,
        SOLVED,
        SOLVED_W8A8,
    ],
    ids=lambda recipe: f"{recipe.label}-{recipe.method}",
)
def test_every_recipe_is_read_back_close_to_its_source(
    recipe: Recipe, tiny_folder: Path, tmp_path: Path
) -> None:
    """By our own reader of the format; nearer with eight bits than with four, three farthest."""
    result = run(request_for(tiny_folder, tmp_path / "out", recipe, evaluated=True))
    found = result.receipt.evaluation
    assert found is not None
    limit = {3: 0.2, 4: 0.06, 8: 0.002}[recipe.bits]
    assert 0 < found["mean_kl"] < limit
    assert found["mean_kl"] < found["p99_kl"]


def test_activations_in_eight_bits_are_measured_as_such(tiny_folder: Path, tmp_path: Path) -> None:
    """The same integers in both, so that all that sets them apart are the activations."""
    found = []
    for scheme in Scheme:
        recipe = replace(INT8, scheme=scheme)
        result = run(request_for(tiny_folder, tmp_path / scheme, recipe, evaluated=True))
        assert result.receipt.evaluation is not None
        found.append(result.receipt.evaluation["mean_kl"])
    assert found[1] > 1.2 * found[0]


def test_eight_bits_are_better_solved(tiny_folder: Path, tmp_path: Path) -> None:
    """Each step brings its part: GPTQ, weights that know of rounded inputs, scales between both."""
    found = {}
    for number, recipe in enumerate(
        (INT8, SOLVED, replace(W8A8, smooth=False), replace(SOLVED_W8A8, smooth=False), SOLVED_W8A8)
    ):
        result = run(request_for(tiny_folder, tmp_path / str(number), recipe, samples=16, evaluated=True))
        assert result.receipt.evaluation is not None
        found[number] = result.receipt.evaluation["mean_kl"]
    assert found[1] < 0.7 * found[0]
    assert found[3] < found[2]
    assert found[4] < found[3]


@pytest.mark.slow
@pytest.mark.parametrize("case", CONVERTIBLE)
def test_every_family_goes_through(case: str, tmp_path: Path) -> None:
    """Fused matrices, experts, norms all around: written, and read back close to the source."""
    import torch

    from models.decoder import Decoder
    from models.weights import open_weights

    folder = tmp_path / "model"
    config = CONVERTIBLE[case]()
    config.vocab_size = hf_models.save_bpe(folder, hf_models.LLAMA3)
    hf_models.save_model(folder, config)
    ids = torch.arange(3, 40)[None]
    with open_weights(folder) as weights:
        expected = Decoder(weights).forward(ids)
    for recipe, limit in ((Recipe(), 0.8), (AWQ, 0.8), (SOLVED, 0.05), (SOLVED_W8A8, 0.05)):
        result = run(request_for(folder, tmp_path / recipe.label, recipe))
        with open_weights(result.path) as weights:
            seen = Decoder(weights).forward(ids)
        # A token that goes to another expert, by a hair, is far off: so half of the tokens must be near.
        distance = ((seen - expected).norm(dim=-1) / expected.norm(dim=-1)).median()
        assert 0 < distance < limit, recipe.format


class Plans(Silent):
    """Keeps the plan."""

    def __init__(self) -> None:
        self.found: list[LayerPlan] = []

    def plan(self, plan: LayerPlan) -> None:
        """Keep it."""
        self.found.append(plan)


def test_on_the_disk_instead_of_in_memory_the_bytes_are_the_same(tiny_folder: Path, tmp_path: Path) -> None:
    """All is kept where somebody gives the memory, some by default; a limit under what is kept has more of it
    computed twice; one under what the samples need sends their states to the disk; one under the rest is
    refused."""
    plans = Plans()

    def weights(name: str, max_memory: int | None) -> bytes:
        path = run(request_for(tiny_folder, tmp_path / name, max_memory=max_memory), plans).path
        return (path / "model.safetensors").read_bytes()

    expected = weights("all", 2**40)
    assert weights("default", None) == expected
    default = plans.found[1]
    assert weights("less", default.memory - default.kept // 2) == expected
    assert weights("nothing", default.memory - default.kept) == expected
    assert weights("disk", default.memory - default.kept - 1) == expected
    states = default.kept  # as much as them
    assert [(plan.kept, plan.in_memory) for plan in plans.found] == [
        (2 * states, True),  # 128 numbers a token in the MLP, 64 between layers
        (states, True),
        (states - states // 2, True),
        (0, True),
        (0, False),
    ]
    with pytest.raises(NotEnoughMemory, match="of memory needed"):
        run(request_for(tiny_folder, tmp_path / "four", max_memory=100_000_000))
    assert not (tmp_path / "four").exists()


def test_shards(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the limit of a file there are several, with an index; they hold the same."""
    from safetensors.torch import load_file

    from quantize import assemble

    one = run(request_for(tiny_folder, tmp_path / "one"))
    monkeypatch.setattr(assemble, "SHARD_BYTES", 60_000)
    many = run(request_for(tiny_folder, tmp_path / "many"))
    shards = sorted(many.path.glob("model-*.safetensors"))
    assert len(shards) > 2
    index = json.loads((many.path / "model.safetensors.index.json").read_text())["weight_map"]
    whole = load_file(one.path / "model.safetensors")
    assert index.keys() == whole.keys()
    for shard in shards:
        for name, tensor in load_file(shard).items():
            assert index[name] == shard.name
            assert tensor.equal(whole[name])


def test_refusals_before_anything_is_done(tiny_folder: Path, tmp_path: Path) -> None:
    """What is wrong, and what would work."""
    output = tmp_path / "out"

    def refused(kind: type[Exception], message: str, recipe: Recipe | None = None, **changes: object) -> None:
        with pytest.raises(kind, match=message):
            run(request_for(tiny_folder, output, recipe, **changes))
        assert not output.exists()

    refused(SourceNotFound, "nothing at", source=tmp_path / "nowhere")
    refused(BadRequest, r"--group-size 128 doesn't divide the 64 columns of .*q_proj: 64, 32 or -1 does",
            Recipe(group_size=128))  # fmt: skip
    refused(BadRequest, "enough for 0 of the 4 samples", calibration=_text(tmp_path, "too short"))
    refused(SourceNotFound, "no file at", calibration=tmp_path / "none.txt")
    refused(BadRequest, "more than the model's context", length=4096)
    with pytest.raises(BadRequest, match="there is no folder"):
        run(request_for(tiny_folder, tmp_path / "no" / "out"))
    with pytest.raises(BadRequest, match="is the source itself"):
        run(request_for(tiny_folder, tiny_folder))
    with pytest.raises(UnsupportedModel, match="is one file of a checkpoint: give the folder that it is in"):
        run(request_for(tiny_folder / "config.json", output))


def _text(folder: Path, text: str) -> Path:
    path = folder / "calibration.txt"
    path.write_text(text)
    return path


def test_an_output_that_is_there(tiny_folder: Path, tmp_path: Path) -> None:
    """Kept without force; a folder that is no checkpoint is kept even so."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "diary.txt").write_text("dear diary")
    with pytest.raises(BadRequest, match="holds no checkpoint"):
        run(request_for(tiny_folder, output, force=True))
    assert (output / "diary.txt").read_text() == "dear diary"
    (output / "diary.txt").unlink()
    (output / "config.json").write_text("{}")
    with pytest.raises(OutputExists, match="--force replaces it"):
        run(request_for(tiny_folder, output))
    run(request_for(tiny_folder, output, force=True))
    assert (output / "model.safetensors").is_file()
    assert list(tmp_path.iterdir()) == [output]


def test_a_full_disk_is_seen_beforehand(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to make room for."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(NotEnoughDisk, match="1 kB free: make room for"):
        run(request_for(tiny_folder, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_is_missing_is_seen_before_the_first_layer(tiny_folder: Path, tmp_path: Path) -> None:
    """However late it would be needed: nothing was begun."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "source"
    shutil.copytree(tiny_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    last = max(name for name in tensors if name.endswith("mlp.down_proj.weight"))
    del tensors[last]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BrokenModelFile, match=f"download the checkpoint again .the tensor {last} is missing"):
        run(request_for(folder, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [folder]


def test_broken_and_unknown_sources(tiny_folder: Path, tmp_path: Path) -> None:
    """NaN by the tensor's name; a missing file; an architecture that nobody knows, with those that are."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "source"
    shutil.copytree(tiny_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BrokenModelFile, match=r"layers\.2\.mlp\.up_proj\.weight holds NaN"):
        run(request_for(folder, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["XForCausalLM"]}))
    with pytest.raises(UnsupportedModel, match="XForCausalLM is not supported; supported are Llama"):
        run(request_for(folder, tmp_path / "other"))
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no weights \(neither .*\): download the rest"):
        run(request_for(folder, tmp_path / "other"))


def test_recipes_that_contradict_themselves() -> None:
    """With what is possible."""
    for arguments, message in (
        ({"format": Format.AWQ, "method": Method.RTN}, "--method rtn doesn't go with --to awq: awq does"),
        ({"bits": 5}, "--bits 5 with --to gptq: 2, 3, 4 or 8 is possible"),
        ({"group_size": 48}, "--group-size 48 with --to gptq: 32, 64, 128 or -1 is possible"),
        ({"checkpoint_format": "marlin"}, "gptq or gptq_v2"),
        ({"format": Format.INT8, "method": Method.RTN, "bits": 8, "smooth": True}, "--scheme w8a8"),
    ):
        with pytest.raises(BadRequest, match=message):
            Recipe(**arguments)  # type: ignore[arg-type]
