"""The n-grams of each conversation, and of those before it."""

from array import array
from collections.abc import Iterable, Sequence

from edgechat.engine.sequence import common_prefix
from edgechat.engine.speculation.ngram import BORDER, NGramIndex
from edgechat.engine.speculation.proposal import Draft
from edgechat.engine.speculation.quoting import NGramProposer

MAX_CONVERSATIONS = 4
"""Whose index is kept; one of a long conversation takes some 2 MB."""
SAME = 32
"""Tokens that a conversation without a name must have in common with one to be taken for its going on."""


class Words:
    """One conversation's index, kept in step with its tokens."""

    def __init__(self, name: str, past: NGramIndex | None) -> None:
        """Nothing is written yet.

        Args:
            name: of the conversation; "" for one without.
            past: the conversations before it.
        """
        self.name = name
        self.busy = False
        self.tokens = array("i")
        self.n_shared = 0
        """Of the tokens, how many others may draft from."""
        self._proposer = NGramProposer(past=past)

    def follow(self, tokens: "array[int]") -> None:
        """The conversation now is `tokens`: only what differs is done again."""
        same = common_prefix(tokens, self.tokens)
        if same < len(self.tokens):
            self._proposer.truncate(same)
            del self.tokens[same:]
            self.n_shared = min(self.n_shared, same)
        self.extend(tokens[same:])

    def extend(self, tokens: Sequence[int]) -> None:
        """The conversation goes on."""
        self._proposer.extend(tokens)
        self.tokens.extend(tokens)

    def propose(self, n: int) -> list[Draft]:
        """Up to `n` drafts; none where nothing matches."""
        return self._proposer.propose(n)

    def unshared(self) -> "array[int]":
        """What others could not draft from so far; from now on they can."""
        new = self.tokens[self.n_shared :]
        self.n_shared = len(self.tokens)
        return new


class Library:
    """The last conversations' indexes."""

    def __init__(self) -> None:
        """Begin with none."""
        self._past = NGramIndex()
        self._kept: list[Words] = []
        """The last used one last."""

    def open(self, name: str, tokens: Iterable[int]) -> Words:
        """The index of a conversation that is now `tokens`; `close` gives it back."""
        tokens = array("i", tokens)
        words = self._known(name, tokens)
        if words is None:
            self._share(one for one in self._kept if not one.busy)
            words = Words(name, self._past)
        else:
            self._kept.remove(words)
        self._kept.append(words)
        words.busy = True
        words.follow(tokens)
        self._drop()
        return words

    def close(self, words: Words) -> None:
        """The answer has ended."""
        words.busy = False
        self._drop()

    def forget(self, name: str) -> None:
        """A conversation was deleted: nothing is drafted from it any more."""
        for words in [words for words in self._kept if words.name == name and not words.busy]:
            self._kept.remove(words)
            if words.n_shared:  # its words lie among the others': all of them go
                self._past.truncate(0)

    def _known(self, name: str, tokens: "array[int]") -> Words | None:
        idle = [words for words in self._kept if not words.busy]
        if name:
            return next((words for words in idle if words.name == name), None)
        closest = max(idle, key=lambda words: common_prefix(tokens, words.tokens), default=None)
        if closest is None or closest.name or common_prefix(tokens, closest.tokens) < SAME:
            return None
        return closest

    def _share(self, ended: Iterable[Words]) -> None:
        for words in ended:
            new = words.unshared()
            if new:
                self._past.extend(new)
                self._past.append(BORDER)

    def _drop(self) -> None:
        idle = [words for words in self._kept if not words.busy]
        while len(self._kept) > MAX_CONVERSATIONS and idle:
            oldest = idle.pop(0)
            self._share([oldest])
            self._kept.remove(oldest)
