"""What can be wrong with a model. The application maps these to its exit codes.

ModelError
├── BrokenModelFile        the file is damaged, truncated or hostile
└── UnsupportedModel       the file is sound, but not something that we can handle
    └── UnsupportedTemplate    the chat template can't be rendered safely
"""


class ModelError(Exception):
    """A model can't be used. The message is one line: what is wrong, where, and what to do."""


class BrokenModelFile(ModelError):
    """The file is damaged, truncated or hostile: nothing of it may reach native code."""


class UnsupportedModel(ModelError):
    """The file is sound, but of an architecture, type or version that is not supported here."""


class UnsupportedTemplate(UnsupportedModel):
    """The chat template failed to compile or render, or went over its limits of time and output."""
