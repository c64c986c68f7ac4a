"""Which results are read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """A source, and what `edgechat quantize` is told to make of it."""

    source: str
    options: tuple[str, ...]

    @property
    def format(self) -> str:
        """gptq, awq or int8."""
        return self.options[1]

    @property
    def reads_text(self) -> bool:
        """Whether there is calibration."""
        return "rtn" not in self.options


def _case(source: str, text: str) -> Case:
    return Case(source, ("--to", *text.split()))


CASES = {
    # SmolLM2's 576 columns are no multiple of 128.
    "smollm2-gptq": _case("smollm2", "gptq --group-size 64"),
    "smollm2-gptq-asym": _case("smollm2", "gptq --group-size 32 --asym"),
    "smollm2-gptq-desc-act": _case("smollm2", "gptq --group-size 64 --desc-act"),
    "smollm2-gptq-8bit-row": _case("smollm2", "gptq --bits 8 --group-size -1 --method rtn"),
    "smollm2-awq": _case("smollm2", "awq --group-size 64"),
    "smollm2-int8-w8a16": _case("smollm2", "int8 --scheme w8a16"),
    # Some of its matrices are in W8A16.
    "smollm2-int8-w8a8": _case("smollm2", "int8 --scheme w8a8"),
    "smollm2-int8-w8a8-unsmoothed": _case("smollm2", "int8 --scheme w8a8 --no-smooth"),
    "smollm2-int8-w8a8-rtn": _case("smollm2", "int8 --scheme w8a8 --method rtn"),
    # All the rest of the formats, on a Llama of random weights.
    "gptq-g128": _case("llama", "gptq --group-size 128"),
    "gptq-row": _case("llama", "gptq --group-size -1"),
    "gptq-asym-v2": _case("llama", "gptq --group-size 64 --asym --checkpoint-format gptq_v2"),
    "gptq-asym-desc-act": _case("llama", "gptq --group-size 32 --asym --desc-act"),
    "gptq-desc-act-v2": _case("llama", "gptq --group-size 32 --desc-act --checkpoint-format gptq_v2"),
    "gptq-2bit": _case("llama", "gptq --bits 2 --group-size 32"),
    "gptq-3bit": _case("llama", "gptq --bits 3 --group-size 64"),
    "gptq-3bit-asym": _case("llama", "gptq --bits 3 --group-size 32 --asym"),
    "gptq-3bit-asym-v2": _case("llama", "gptq --bits 3 --group-size 32 --asym --checkpoint-format gptq_v2"),
    "gptq-8bit-asym": _case("llama", "gptq --bits 8 --group-size 128 --asym"),
    "awq-g32": _case("llama", "awq --group-size 32"),
    "awq-g128": _case("llama", "awq --group-size 128"),
    # Biases, and an output matrix of its own.
    "qwen2-gptq": _case("qwen2", "gptq --group-size 64"),
    "qwen2-awq": _case("qwen2", "awq --group-size 64"),
    "qwen2-int8-w8a16": _case("qwen2", "int8 --scheme w8a16"),
    "qwen2-int8-w8a8-smooth": _case("qwen2", "int8 --scheme w8a8 --smooth"),
}
GPTQ = [name for name, case in CASES.items() if case.format == "gptq"]
AWQ = [name for name, case in CASES.items() if case.format == "awq"]
INT8 = [name for name, case in CASES.items() if case.format == "int8"]
