"""The conversation: about forty live widgets, however long it is; the others come with scrolling.

Widgets are what a terminal app pays for: each answer is a dozen of them, and all are laid out anew with
every piece of a streaming answer. So only a window of the entries is mounted.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

from edgechat.chat.entries import Entry, Kind
from edgechat.chat.events import Added, Changed, ChatEvent, Grew, Removed, Reset, Unseen
from edgechat.chat.widgets.views import EntryView, view_of
from edgechat.chat.widgets.welcome import Welcome

MAX_LIVE = 40
"""Message widgets at once."""
TAIL = 20
"""Entries that are mounted at first."""
CHUNK = 10
"""Entries that come with one scroll to the edge."""
EDGE = 6
"""Lines from the edge of what is mounted where more is fetched."""
SCREENS_KEPT = 3
"""What is let go of leaves this many screens mounted, however many widgets these take."""


class Transcript(VerticalScroll, can_focus=False):
    """Shows entries. Follows the end, until the person scrolls away from it."""

    def __init__(self, welcome: Welcome) -> None:
        super().__init__(id="transcript")
        self._welcome = welcome
        self._entries: list[Entry] = []
        self._first = 0
        self._last = 0  # entries [first, last) are mounted
        self._views: dict[int, EntryView] = {}
        self._growing: int | None = None
        self._unseen = Unseen(None)
        self._lock = asyncio.Lock()
        self._shifting = False
        self._window = self._settled = 0  # windows that were mounted, and the last one that was laid out
        self._held: tuple[Widget, int] | None = None

    async def on_mount(self) -> None:
        """Begin empty."""
        await self.mount(self._welcome)
        self.anchor()

    @property
    def live(self) -> list[EntryView]:
        """The mounted views, top first."""
        return [self._views[entry.key] for entry in self._entries[self._first : self._last]]

    @property
    def follows_end(self) -> bool:
        """New text is scrolled into sight."""
        return self._last == len(self._entries) and not self._anchor_released

    # --- what happens to the conversation

    async def apply(self, event: ChatEvent) -> None:
        """Show one event of the controller; all of them, in their order."""
        async with self._lock:
            match event:
                case Reset(entries=entries):
                    await self._reset(list(entries))
                case Added(entry=entry):
                    await self._add(entry)
                case Grew(key=key, text=text):
                    await self._grow(key, text)
                case Changed(entry=entry):
                    await self._change(entry)
                case Removed(key=key):
                    await self._remove(key)
                case Unseen():
                    await self._mark(event)
                case _:
                    return
        self.call_after_refresh(self._fetch_if_at_edge)

    async def show_end(self) -> None:
        """Go to the newest entry and follow it."""
        async with self._lock:
            if self._last != len(self._entries):
                await self._mount_tail()
            self.anchor()

    async def show_start(self) -> None:
        """Go to the oldest entry."""
        async with self._lock:
            if self._first != 0:
                await self._mount_window(0, min(TAIL, len(self._entries)))
            self.release_anchor()
            self.scroll_home(animate=False)

    async def _reset(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._growing = None
        self._unseen = Unseen(None)
        await self._mount_tail()
        self._show_welcome()
        self.anchor()

    async def _add(self, entry: Entry) -> None:
        at_tail = self._last == len(self._entries)
        self._entries.append(entry)
        if entry.kind is Kind.ASSISTANT and not entry.text:
            self._growing = entry.key
        self._show_welcome()
        if entry.kind is Kind.USER and not at_tail:
            await self._mount_tail()
        elif at_tail:
            self._last += 1
            await self._mount_views([entry])
            if self.follows_end or entry.kind is Kind.USER:
                await self._trim_top()
        if entry.kind is Kind.USER:
            self.anchor()

    async def _grow(self, key: int, text: str) -> None:
        index = self._index(key)
        view = self._views.get(key)
        if view is not None:
            await view.append_text(text)
        entry = self._entries[index]
        self._entries[index] = replace(entry, text=entry.text + text)

    async def _change(self, entry: Entry) -> None:
        self._entries[self._index(entry.key)] = entry
        if self._growing == entry.key:
            self._growing = None
        view = self._views.get(entry.key)
        if view is not None and entry.kind is Kind.ASSISTANT:
            await view.show(entry)

    async def _remove(self, key: int) -> None:
        index = self._index(key)
        del self._entries[index]
        if index < self._first:
            self._first -= 1
        if index < self._last:
            self._last -= 1
        if key in self._views:
            await self._views.pop(key).remove()
        self._show_welcome()

    async def _mark(self, unseen: Unseen) -> None:
        """Move the line; what is in sight below it stays in its place only where the end is followed."""
        with self.app.batch_update():
            for old, n_messages in ((self._unseen, 0), (unseen, unseen.n_messages)):
                if old.key in self._views:
                    await self._views[old.key].mark(n_messages, old.summary)
        self._unseen = unseen

    def _show_welcome(self) -> None:
        """Notices alone are no conversation."""
        self._welcome.display = all(entry.kind is Kind.NOTICE for entry in self._entries)

    # --- the window

    async def _mount_tail(self) -> None:
        await self._mount_window(max(len(self._entries) - TAIL, 0), len(self._entries))

    async def _mount_window(self, first: int, last: int) -> None:
        with self.app.batch_update():
            await self.remove_children(EntryView)
            self._views.clear()
            self._first, self._last = first, last
            self._held = None
            await self._mount_views(self._entries[first:last])
        self._window += 1
        self.call_after_refresh(self._settle, self._window)

    def _settle(self, window: int) -> None:
        """A window has been laid out."""
        self._settled = max(self._settled, window)
        self._fetch_if_at_edge()

    async def _mount_views(self, entries: Iterable[Entry], before: Widget | None = None) -> None:
        views = [view_of(entry, growing=entry.key == self._growing) for entry in entries]
        self._views |= {view.entry.key: view for view in views}
        await self.mount_all(views, before=before)
        for view in views:
            if view.entry.key == self._unseen.key:
                await view.mark(self._unseen.n_messages, self._unseen.summary)

    async def _trim_top(self) -> None:
        excess = self._excess(self.live)
        await self._unmount(self._entries[self._first : self._first + excess])
        self._first += excess

    async def _trim_bottom(self) -> None:
        excess = self._excess(self.live[::-1])
        await self._unmount(self._entries[self._last - excess : self._last])
        self._last -= excess

    def _excess(self, views: list[EntryView]) -> int:
        """How many of these can go: all over MAX_LIVE, unless what stays would hardly fill the screen."""
        spare = self.virtual_size.height - SCREENS_KEPT * self.size.height
        excess = 0
        for view in views[: max(len(views) - MAX_LIVE, 0)]:
            spare -= view.outer_size.height
            if spare < 0:
                break
            excess += 1
        return excess

    async def _unmount(self, entries: Iterable[Entry]) -> None:
        for view in [self._views.pop(entry.key) for entry in entries]:
            await view.remove()

    # --- scrolling

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Fetch what is beyond the edge before the person gets there."""
        super().watch_scroll_y(old_value, new_value)
        if not self._shifting:
            self._fetch_if_at_edge()

    def _fetch_if_at_edge(self) -> None:
        older = self._first > 0 and self.scroll_y < EDGE
        newer = self._last < len(self._entries) and self.scroll_y > self.max_scroll_y - EDGE
        is_settled = self._settled == self._window  # else nobody knows yet where the edges are
        if (older or newer) and is_settled and not self._shifting and self.is_mounted:
            self._shifting = True
            self.run_worker(self._fetch(self._window, older=older), group="transcript", exit_on_error=True)

    async def _fetch(self, window: int, *, older: bool) -> None:
        """Mount more at one end, and let go of as much at the other; what is in sight stays in its place."""
        try:
            async with self._lock:
                if not self._views or window != self._window:  # another one was mounted meanwhile
                    return
                with self.app.batch_update():
                    if older:
                        await self._fetch_older()
                    else:
                        await self._fetch_newer()
            await self._laid_out()
        finally:
            self._held = None
            self._shifting = False
        self.call_after_refresh(self._fetch_if_at_edge)  # the person may have scrolled on meanwhile

    async def _fetch_older(self) -> None:
        top = self.live[0]
        if not self.follows_end:
            self._hold(top)
        start = max(self._first - CHUNK, 0)
        fresh = self._entries[start : self._first]
        self._first = start
        await self._mount_views(fresh, before=top)
        if not self.follows_end:
            await self._trim_bottom()

    async def _fetch_newer(self) -> None:
        self._hold(self.live[-1])
        fresh = self._entries[self._last : self._last + CHUNK]
        self._last += len(fresh)
        await self._mount_views(fresh)
        await self._trim_top()

    def _hold(self, view: Widget) -> None:
        """Keep a widget where it is on the screen, whatever is mounted or removed above it."""
        self._held = (view, view.virtual_region.y - round(self.scroll_y))

    async def _laid_out(self) -> None:
        done = asyncio.Event()
        self.call_after_refresh(done.set)
        await done.wait()

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Scroll along with a held widget in the very layout that moves it, so that nothing jumps."""
        result = super().arrange(size, optimal)
        # Textual would push what is shorter than the screen down to its end; a greeting is read from its top.
        self._anchored = bool(self._entries) and result.total_region.bottom > size.height
        # The end of what is mounted is not the end of the conversation.
        self._anchor_released |= self._last < len(self._entries)
        if self._held is not None:
            view, offset = self._held
            for placement in result.placements:
                if placement.widget is view:
                    scroll_y = max(placement.region.y - offset, 0)
                    self.set_reactive(Widget.scroll_y, scroll_y)
                    self.set_reactive(Widget.scroll_target_y, scroll_y)
                    break
        return result

    def _index(self, key: int) -> int:
        return next(i for i in reversed(range(len(self._entries))) if self._entries[i].key == key)
