"""What a loaded model takes of the memory, part by part, in bytes."""

import msgspec

from edgechat.hardware import MARGIN


class Needs(msgspec.Struct, frozen=True):
    """Memory of an engine that runs one model, while it chats and its context is full.

    `peak` is what the system shows as the process's resident memory. `held` is what must stay there:
    weights that were copied, to be laid out for this CPU or onto a GPU, are pages of the file that nobody
    reads again, and the system takes them back without writing anything.
    """

    engine: int
    """Python, numpy, llama.cpp, and the model's vocabulary."""
    weights: int
    """Main memory for the weights as they are in the file, mapped or read."""
    repacked: int
    """Copies of weights, laid out for this CPU's instructions."""
    cold: int
    """Of `weights`, what is mapped but not read again once it was copied."""
    kv: int
    """Keys and values of the whole context, and states of recurrent layers."""
    compute: int
    """Intermediate results of a batch."""
    output: int
    """Logits of one token for each sequence."""
    draft: int = 0
    """All that a draft model takes in main memory."""
    gpu: int = 0
    """Memory of the GPUs, all together; none of it is main memory, unless they share it."""
    scoring: int = 0
    """More that is taken while texts are scored (`edgechat eval`): logits of every token of a batch."""

    @property
    def peak(self) -> int:
        """Most resident main memory."""
        return self.engine + self.weights + self.repacked + self.kv + self.compute + self.output + self.draft

    @property
    def held(self) -> int:
        """Main memory without which it would swap, or read its weights from the disk again and again."""
        return self.peak - self.cold


class Available(msgspec.Struct, frozen=True):
    """What may be taken, in bytes."""

    ram: int
    """Of main memory, without swapping."""
    vram: int = 0
    """Of the GPUs' memory; 0 without a GPU, or where it doesn't tell."""
    shared: bool = False
    """The GPUs' memory is the main memory."""
    total_ram: int = 0
    """All the main memory there is, for people; 0 where it isn't known."""
    margin: int = MARGIN
    """What of `ram` must stay free."""

    @property
    def room(self) -> int:
        """Bytes of main memory to plan with; below 0 where less than the margin is free."""
        return self.ram - self.margin
