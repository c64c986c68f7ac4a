"""What the controller tells: pieces of one answer are shown together."""

from edgechat.chat.entries import Entry, Kind
from edgechat.chat.events import Added, ChatStatus, Grew, StatusChanged, merged


def test_events_are_joined() -> None:
    entry = Entry(2, Kind.ASSISTANT, "")
    first, last = StatusChanged(ChatStatus(title="a")), StatusChanged(ChatStatus(title="b"))
    events = [first, Added(entry), Grew(2, "a"), last, Grew(2, "b"), Grew(3, "c"), Grew(2, "d")]
    assert merged(events) == [Added(entry), Grew(2, "ab"), Grew(3, "c"), Grew(2, "d"), last]
    assert merged([]) == []
