"""What the engine is asked for one answer."""

import secrets

import msgspec

from edgechat.chat.events import Unseen
from edgechat.chat.options import ChatOptions
from edgechat.chat.prompt import Prompt
from edgechat.engine.process.messages import Generate


def build_request(prompt: Prompt, options: ChatOptions, conversation: str, unseen: Unseen) -> Generate:
    """Ask for the answer to a prompt.

    Args:
        prompt: the conversation, whose last message is the question.
        options: how the answer is drawn. Without a seed one is drawn here, so that the person can be told.
        conversation: the name under which the engine keeps it; "" keeps nothing.
        unseen: what of it the model sees as a summary only.
    """
    sampling = options.sampling
    if sampling.seed is None:
        sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(32))
    summary = unseen.summary if options.summarize else ""
    return Generate(
        id=0,  # the engine's client numbers its requests
        messages=prompt.messages,
        sampling=sampling,
        max_tokens=options.max_tokens,
        conversation=conversation,
        overflow="window",  # a conversation never ends because a message is long
        summarize=options.summarize,
        summary=summary,
        summarized=0 if unseen.key is None or not summary else prompt.n_up_to(unseen.key),
    )
