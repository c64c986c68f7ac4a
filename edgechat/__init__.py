"""edgechat: run a language model on the machine in front of you."""

__version__ = "0.1.0"
