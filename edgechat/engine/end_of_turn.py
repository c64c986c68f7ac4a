"""Which tokens end an answer, by what the chat template puts after one."""

from edgechat.runtimes.base import Tokenizer


def end_of_turn_ids(after_answer: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The markers that a text begins with, blanks between them aside.

    A file may name but one token that ends a text, while its model ends its turns with another, as it was
    trained on the template.

    Args:
        after_answer: what the template puts after an answer ("<|im_end|>\\n").
        tokenizer: the model's own.
    """
    found: list[int] = []
    for token in tokenizer.encode(after_answer, special=True):
        if _is_marker(token, tokenizer):
            found.append(token)
        elif tokenizer.piece(token).strip():
            break  # plain text: what comes after it is no end
    return tuple(dict.fromkeys(found))


def _is_marker(token: int, tokenizer: Tokenizer) -> bool:
    if not tokenizer.piece(token):
        return True
    name = tokenizer.name(token)
    return len(name) > 2 and name.startswith("<") and name.endswith(">")  # of a file that calls it plain text
