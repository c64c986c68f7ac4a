"""Conversations whose every token says where it belongs, for the sliding window's policy."""

from itertools import pairwise

from hypothesis import strategies as st

from edgechat.engine.eviction import Eviction, Role, Span
from edgechat.engine.window import Window

Token = tuple[str, int]  # ("head" | "body" | "tail" | "bos", message)


class Conversation:
    """Tokens and spans, kept in step by evictions."""

    def __init__(self, bos: int, system: int | None, folded: bool, head: int = 3, tail: int = 2) -> None:
        self.head, self.tail = head, tail
        self.tokens: list[Token] = [("bos", -1)] * bos
        self.spans: list[Span] = []
        self.roles: dict[int, Role] = {}
        self.n_messages = 0
        self.folded = folded and system is not None
        if system is not None:
            if self.folded:  # the system prompt stands in the user's first message, behind its header
                self.tokens += [("head", -2)] * head + [("system", 0)] * system
                self.spans.append(Span(0, "system", bos, len(self.tokens), pinned=True))
                self.roles[0] = "system"
                self.n_messages = 1
            else:
                self.add("system", system, pinned=True)

    def add(self, role: Role, size: int, *, open_: bool = False, pinned: bool = False) -> None:
        start = len(self.tokens)
        message = self.n_messages
        opened = self.folded and message == 1
        head, tail = (0 if opened else self.head), (0 if open_ else self.tail)
        self.tokens += [("head", message)] * head + [("body", message)] * size + [("tail", message)] * tail
        self.spans.append(
            Span(message, role, start, len(self.tokens), head, tail, pinned=pinned, opened=opened)
        )
        self.roles[message] = role
        self.n_messages += 1

    def grow(self, n: int) -> None:
        """The open answer goes on."""
        last = self.spans[-1]
        self.tokens += [("body", last.message)] * n
        self.spans[-1] = Span(
            last.message,
            last.role,
            last.start,
            last.stop + n,
            last.head,
            0,
            last.pinned,
            last.opened,
            last.lost,
        )

    def close(self) -> None:
        """The open answer ends."""
        last = self.spans[-1]
        self.tokens += [("tail", last.message)] * self.tail
        self.spans[-1] = Span(
            last.message, last.role, last.start, last.stop + self.tail, last.head, self.tail,
            last.pinned, last.opened, last.lost,
        )  # fmt: skip

    def carry_out(self, eviction: Eviction) -> None:
        for start, stop in reversed(eviction.ranges):
            del self.tokens[start:stop]
        self.spans = list(eviction.spans)

    def check(self) -> None:
        """The spans cover the tokens, and the tokens are what the template would write."""
        assert self.spans[-1].stop == len(self.tokens)
        for a, b in pairwise(self.spans):
            assert a.stop == b.start or (a.role == "system" and a.stop < b.start and b.opened)
        for span in self.spans:
            kinds = [kind for kind, _ in self.tokens[span.start : span.stop]]
            owners = {message for _, message in self.tokens[span.start : span.stop]}
            if self.folded and span.role == "system":
                assert kinds.count("system") == len(kinds) - self.head
                continue
            n_body = len(span) - span.head - span.tail
            assert kinds == ["head"] * span.head + ["body"] * n_body + ["tail"] * span.tail
            assert owners <= {span.message}
            assert span.head == (0 if span.opened else self.head)
        roles = [span.role for span in self.spans if span.role != "system"]
        assert roles[0] == "user"
        assert all(a != b for a, b in pairwise(roles)), roles

    def headers(self) -> list[str]:
        """Kinds of tokens with repetitions folded: the grammar that the template writes."""
        folded: list[str] = []
        for kind, _ in self.tokens:
            if not folded or folded[-1] != kind:
                folded.append(kind)
        return folded


def assert_template(conversation: Conversation) -> None:
    """Every header is followed by a body and closed by a tail before the next header comes."""
    if not conversation.tail:
        return
    kinds = [kind for kind in conversation.headers() if kind not in ("bos", "system", "body")]
    assert all(a != b for a, b in pairwise(kinds)), conversation.headers()
    assert kinds[0] == "head"


@st.composite
def conversations(draw: st.DrawFn, max_size: int = 400) -> Conversation:
    """Any conversation whose last question awaits its answer."""
    conversation = Conversation(
        bos=draw(st.integers(0, 2)),
        system=draw(st.none() | st.integers(1, 60)),
        folded=draw(st.booleans()),
        head=draw(st.integers(1, 6)),
        tail=draw(st.integers(0, 2)),
    )
    for _ in range(draw(st.integers(0, 8))):
        conversation.add("user", draw(st.integers(1, max_size)))
        conversation.add("assistant", draw(st.integers(1, max_size)))
    conversation.add("user", draw(st.integers(1, max_size)))
    conversation.add("assistant", draw(st.integers(0, max_size)), open_=True)
    return conversation


WINDOWS = st.builds(Window, budget=st.integers(400, 1200), slack=st.integers(0, 32))
