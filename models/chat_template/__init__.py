"""Chat templates: from the messages of a conversation to the text that a model was trained on.

Templates are programs from strangers. They run in Jinja's immutable sandbox, on a thread of their own, with
limits on time, memory and output; what they see and how they render is as in transformers.
"""

from models.chat_template.limits import Limits
from models.chat_template.source import from_directory
from models.chat_template.template import ChatTemplate, Rendered, TemplateNote
from models.chat_template.usable import usable_template

__all__ = ["ChatTemplate", "Limits", "Rendered", "TemplateNote", "from_directory", "usable_template"]
