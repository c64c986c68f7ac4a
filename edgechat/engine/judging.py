"""Which of a step's drafts stand, by the sampler of the answer that they are for.

The rule and its proof are in `edgechat.engine.speculation.accept`. Here it runs on rows of logits: each
token is taken before the next is judged, so that penalties, grammar and stop strings see what they would see
if the tokens had come one by one.
"""

from collections.abc import Callable, Sequence

from edgechat.engine.sampling import Sampler
from edgechat.engine.speculation.accept import Verdict, judge
from edgechat.engine.speculation.proposal import Draft
from edgechat.runtimes.base import Logits


def judge_rows(
    sampler: Sampler, rows: Logits, drafts: Sequence[Draft], take: Callable[[int], bool]
) -> Verdict:
    """Judge `drafts` one after the other, up to the first that falls or ends the answer.

    A chosen draft, and the token after the last one, are drawn just as plain decoding draws them: a seed
    gives the same text with such drafts and without.

    Args:
        sampler: of the answer.
        rows: float32 [len(drafts) + 1, n_vocab]: the target's logits at each place.
        drafts: in order; none is plain decoding.
        take: makes a token part of the answer, and tells the sampler; True where the answer ends with it.

    Raises:
        BadLogits: a row has NaN or infinite logits. The tokens before it were taken.
    """
    tokens: list[int] = []
    for place, draft in enumerate(drafts):
        row, q = rows[place], draft.drawn_from
        if q is None:
            token = sampler.sample(row)
        else:
            token = judge(draft.token, q, sampler.distribution(row), sampler.random.random)
        tokens.append(token)
        ends, stands = take(token), token == draft.token
        if ends or not stands:
            return Verdict(tuple(tokens), place + stands, place + 1)
    tokens.append(sampler.sample(rows[len(drafts)]))
    take(tokens[-1])
    return Verdict(tuple(tokens), len(drafts), len(drafts))
