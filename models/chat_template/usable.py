"""Whether a model's chat template can be used at all."""

from models.chat import ChatMessage
from models.chat_template.template import ChatTemplate
from models.errors import UnsupportedTemplate
from models.gguf import GGUFHeader
from models.gguf_header import LazyArray

_QUESTION = "Hello"


def usable_template(source: str, *, bos: str | None, eos: str | None) -> ChatTemplate:
    """A template that rendered a question: what fails there would fail at every one.

    Args:
        source: in Jinja.
        bos: the name of the token that begins a text; None: the model has none.
        eos: the same of the one that ends it.

    Raises:
        UnsupportedTemplate: it is no template, it fails, or it leaves the question out.
    """
    template = ChatTemplate(source, bos=bos, eos=eos)
    text = template.render([ChatMessage("user", _QUESTION)]).text
    if _QUESTION.casefold() not in text.casefold():
        raise UnsupportedTemplate("the chat template leaves the person's message out")
    return template


def template_trouble(header: GGUFHeader) -> str:
    """Why the chat template of a GGUF file can't be used; "" where it can, or where there is none.

    Raises:
        BrokenModelFile: the file has changed since its header was read.
    """
    source = header.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str) or not source:
        return ""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    names = tokens.read() if isinstance(tokens, LazyArray) else []
    ids = (header.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos"))
    # A template may add them up: without a name they are nothing, not undefined.
    bos, eos = (str(names[i]) if isinstance(i, int) and 0 <= i < len(names) else "" for i in ids)
    try:
        usable_template(source, bos=bos, eos=eos)
    except UnsupportedTemplate as error:
        return str(error)
    return ""
