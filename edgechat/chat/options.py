"""What every new conversation begins with."""

from dataclasses import dataclass, field

from edgechat.records import SamplingSettings


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What every new conversation begins with."""

    model: str
    """The model's name, as the person knows it; the one in the file may be anything."""
    model_path: str = ""
    """Its file, by which a conversation finds it again."""
    system_prompt: str | None = None
    """None for the model's own; "" for none at all."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int = 0
    summarize: bool = False
    """The model sums up what leaves the context."""
