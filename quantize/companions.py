"""The files of a checkpoint's folder that go along with its weights, unchanged."""

from pathlib import Path

COMPANIONS = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "generation_config.json", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
"""Files that go along unchanged; and licences."""


def companions(source: Path) -> list[Path]:
    """The files of a checkpoint's folder that go along unchanged."""
    wanted = [source / name for name in COMPANIONS]
    wanted += [path for path in sorted(source.iterdir()) if path.name.upper().startswith(("LICEN", "NOTICE"))]
    return [path for path in wanted if path.is_file()]
