"""A writer that is killed in the middle of an answer loses at most the last second, and no turn."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from edgechat.history import HistoryStore, Status

WRITER = """
import sys
from pathlib import Path
from edgechat.history import HistoryStore, Status

store = HistoryStore(Path(sys.argv[1]))
conversation = store.create("A", "starter", "")
for turn in range(10**6):
    store.add(conversation.id, "user", f"question {turn}", status=Status.COMPLETE)
    print("asked", conversation.id, turn, 0, flush=True)
    answer = store.add(conversation.id, "assistant", "", status=Status.PARTIAL)
    for step in range(1, 20):
        store.write(answer.id, "word " * step)
        print("wrote", conversation.id, turn, step, flush=True)
    store.write(answer.id, "word " * 20, status=Status.COMPLETE)
    print("done", conversation.id, turn, 20, flush=True)
"""


def test_twenty_kills_lose_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    chance = random.Random(20)
    for _ in range(20):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 70)):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split("\n")
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        if len(lines) < 2:  # the last whole line, wherever the kill fell
            continue
        kind, conversation, turn, step = lines[-2].split()

        store = HistoryStore(path)
        messages = store.messages(int(conversation))
        questions = [m.content for m in messages if m.role == "user"]
        assert questions[: int(turn) + 1] == [f"question {n}" for n in range(int(turn) + 1)]
        answers = [m for m in messages if m.role == "assistant"]
        for whole in answers[: int(turn)]:
            assert (whole.status, whole.content) == (Status.COMPLETE, "word " * 20)
        if kind != "asked":
            assert len(answers[int(turn)].content) >= len("word " * int(step))
        store.close()
    assert HistoryStore(path).search("question")
