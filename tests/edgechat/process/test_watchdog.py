import pytest

from edgechat.engine.process.watchdog import Watchdog


class Scripted(Watchdog):
    """A watchdog that is told what the process does."""

    def __init__(self):
        super().__init__(0, interval_s=5.0, silence_s=30.0)
        self.cpu_s = 0.0
        self.waits_for_disk = False

    def _activity(self):
        return self.cpu_s, self.waits_for_disk


@pytest.fixture
def dog():
    return Scripted()


def test_silence_without_work_is_a_hang_after_thirty_seconds(dog):
    assert [dog.is_hung() for _ in range(6)] == [False] * 5 + [True]
    assert dog.hung


def test_work_is_no_hang_however_long_the_silence(dog):
    for _ in range(100):
        dog.cpu_s += 0.1
        assert not dog.is_hung()


def test_an_answer_now_and_then_is_no_hang(dog):
    for _ in range(20):
        assert not any(dog.is_hung() for _ in range(4))
        dog.heard()


def test_reading_from_a_slow_disk_is_no_hang(dog):
    dog.waits_for_disk = True
    assert not any(dog.is_hung() for _ in range(100))


def test_a_new_request_begins_anew(dog):
    assert not any(dog.is_hung() for _ in range(5))
    dog.expect()
    assert [dog.is_hung() for _ in range(6)] == [False] * 5 + [True]


def test_a_slow_machine_gets_twenty_times_its_longest_pause(dog, monkeypatch):
    now = iter([0.0, 4.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    dog.expect()
    dog.heard()  # 4 s: patience for 80
    dog.is_hung()
    assert [dog.is_hung() for _ in range(16)] == [False] * 15 + [True]


def test_a_process_that_is_gone_is_not_hung():
    assert not Watchdog(2**22 + 1, interval_s=60).is_hung()
