"""How often a drawn draft stands, by two rules: for `speculation.py`."""

from typing import Any

import numpy as np
from speculation_contenders import Stage
from speculation_texts import KINDS

from edgechat.engine.sampling import Sampler
from edgechat.engine.speculation.accept import acceptance, probability
from edgechat.records import SamplingSettings
from edgechat.runtimes.base import Chunk, Wanted
from models.chat import ChatMessage

KINDS_COMPARED = ("prose", "poem", "quote")


def acceptances(stage: Stage, n_tokens: int) -> list[dict[str, Any]]:
    """How often a drawn draft stands, by the rejection rule and by sample-and-compare: exact expectations
    at each position of texts that the target drew."""
    rows = []
    for temperature in (0.8, 1.0):
        usual = SamplingSettings(temperature=temperature, seed=3)
        free = SamplingSettings(temperature=temperature, seed=3, top_k=0, top_p=1, min_p=0)
        for label, sampling in (("defaults", usual), ("open", free)):
            sampler = Sampler(sampling)
            sums = np.zeros(3)
            n = 0
            for kind in KINDS_COMPARED:
                p_rows, q_rows = _both(stage, kind, sampling, n_tokens)
                for p_row, q_row in zip(p_rows, q_rows, strict=True):
                    p, q = sampler.distribution(p_row), sampler.distribution(q_row)
                    top = int(q.ids[q.probabilities.argmax()])
                    same = sum(
                        float(q.probabilities[i]) * probability(p, int(q.ids[i]))
                        for i in np.argsort(-q.probabilities)[:64]
                    )
                    sums += (acceptance(p, q), same, probability(p, top))
                    n += 1
            rule, compared, likeliest = (sums / n).tolist()
            rows.append(
                {
                    "temperature": temperature,
                    "sampling": label,
                    "positions": n,
                    "rejection_rule": rule,
                    "sample_and_compare": compared,
                    "ratio": rule / compared,
                    "likeliest_drafted": likeliest,
                }
            )
    return rows


def _both(stage: Stage, kind: str, sampling: SamplingSettings, n_tokens: int) -> tuple[Any, Any]:
    """Logits of both models at each token of an answer that the target draws, [n, n_vocab]."""
    stage.engine.release_idle()
    if stage.model is not None:
        stage.model.free(0)
    tokenizer = stage.runtime.tokenizer
    messages = [ChatMessage("user", KINDS[kind][0])]
    prompt = tokenizer.encode(stage.template.render(messages).text if stage.template else KINDS[kind][0])
    sampler = Sampler(sampling)
    found: list[Any] = []
    stage.runtime.decode([Chunk(0, prompt[:-1], 0, Wanted.NONE)])
    text = list(prompt)
    for _ in range(n_tokens):
        row = stage.runtime.decode([Chunk(0, text[-1:], len(text) - 1)])[0].copy()
        found.append(row)
        text.append(sampler.sample(row))
    n_vocab = min(tokenizer.n_vocab, stage.drafts.tokenizer.n_vocab)
    stage.drafts.decode([Chunk(0, prompt[:-1], 0, Wanted.NONE)])
    drafted = []
    for at in range(len(prompt) - 1, len(text) - 1, 32):
        part = text[at : min(at + 32, len(text) - 1)]
        drafted.append(stage.drafts.decode([Chunk(0, part, at, Wanted.ALL)])[:, :n_vocab].copy())
    stage.runtime.free(0)
    stage.drafts.free(0)
    return np.array(found)[:, :n_vocab], np.concatenate(drafted)
