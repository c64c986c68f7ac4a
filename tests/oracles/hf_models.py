"""Small models of random weights, as transformers saves them; tokenizers that `tokenizers` trained."""

import json
from pathlib import Path
from typing import Any

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the sun.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "def quick(n: int) -> int:\n    return n if n < 2 else quick(n - 1) + quick(n - 2)\n",
    "It's what they'd said: we'll see, you're right, I've 1234567 reasons.",
    "你好，世界。今天天气怎么样？ 今天天气很好。",
]

SCRIPTS = """The quick brown fox jumps over the lazy dog. It's 3.14159, isn't it? They'LL go; WE'VE been.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
مرحبا بالعالم، كيف حالك؟ ١٢٣٤ שלום עולם, מה שלומך? नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก ภาษาไทย
你好，世界！今天天气怎么样？ こんにちは世界。カタカナとひらがな。 안녕하세요 세계, 한국어 텍스트입니다.
👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ❤️ café ﬁ ½ ² ㎏ naïve Ångström
def f(x: int) -> str:\n\tif x >= 10_000:\n\t\treturn f"{x:,}"  # comment\n    return None\n\n\n\n  \t \n
   three spaces     five\t\ttabs\r\nCRLF\n\n 1234567890 12 345 6,789.00 1e-5 0xFF <b>bold</b>
<table>\u00a0nbsp\u3000wide
$$$ %%% ... --- === !!! ??? (((()))) [[]] {{}} ~~~ ```python``` \\n \\x00 don't DON'T 'tis trailing   """
"""A text of many scripts, with runs of white space, digits, emoji of several parts and code."""

USER_DEFINED = ["\n", "\n\n", "▁▁", "<start_of_turn>"]

GPT2_LIKE = "gpt-2"
LLAMA3 = "llama-bpe"
QWEN2 = "qwen2"
SMOLLM = "smollm"

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REGEXES = {LLAMA3: _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), QWEN2: _QWEN2}


def save_bpe(folder: Path, kind: str = GPT2_LIKE, vocab_size: int = 380, *, bos: bool = False) -> int:
    """Train a byte-level BPE tokenizer and save it.

    Args:
        folder: where to.
        kind: how text is split beforehand.
        vocab_size: tokens at most.
        bos: texts begin with <|begin|>.

    Returns:
        How many tokens it has.
    """
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == LLAMA3))
    if kind == QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind not in REGEXES)]
    if kind in REGEXES:
        parts.insert(0, pre_tokenizers.Split(Regex(REGEXES[kind]), "isolated"))
    if kind == SMOLLM:
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|end|>", "<|begin|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 1)]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|begin|>", pad_token="<|pad|>"
    )
    fast.chat_template = "{% for m in messages %}<|begin|>{{ m.content }}<|end|>{% endfor %}"
    fast.save_pretrained(folder)
    return len(tokenizer.get_vocab())


def save_sentencepiece(folder: Path, vocab_size: int = 420, *, as_json: bool = True) -> int:
    """Train a SentencePiece BPE tokenizer with byte tokens and save it, as tokenizer.json or .model.

    Returns:
        How many tokens it has.
    """
    import io

    import sentencepiece

    folder.mkdir(exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
        user_defined_symbols=USER_DEFINED,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    names = {f"{kind}_token": f"<{kind}>" for kind in ("bos", "eos", "pad", "unk")}
    config = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if as_json:
        _as_json(folder, model.getvalue())
    return vocab_size


def _as_json(folder: Path, model: bytes) -> None:
    """The same tokenizer as transformers has it: every way to make a token of two is a merge, best first."""
    import sentencepiece
    from tokenizers import AddedToken
    from transformers import GemmaTokenizer

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = {processor.id_to_piece(i): i for i in range(processor.vocab_size())}
    merges = []
    for piece, i in vocab.items():
        splits = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
        known = sorted((vocab[a], vocab[b], a, b) for a, b in splits if a in vocab and b in vocab)
        merges += [(-processor.get_score(i), a, b) for _, _, a, b in known]
    merges.sort(key=lambda merge: merge[0])
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[(a, b) for _, a, b in merges], add_bos_token=True)
    own = [AddedToken(text, normalized=False) for text in USER_DEFINED]
    tokenizer.add_tokens(own)
    (folder / "tokenizer.model").unlink()
    tokenizer.save_pretrained(folder)


def save_model(folder: Path, config: Any, dtype: str = "float32", **options: Any) -> Any:
    """A model of that config with random weights, none of them at its initial value, saved.

    Returns:
        The model, in float32 and ready to run.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.1))
            parameter.copy_(parameter.to(getattr(torch, dtype)).float())
            assert parameter.abs().max() > 0, name
    model.to(getattr(torch, dtype)).save_pretrained(folder, **options)
    return model.float().eval()


def logits(model: Any, ids: list[int]) -> Any:
    """float32 [len(ids), n_vocab], as transformers computes them."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()
