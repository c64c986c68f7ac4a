import signal

import pytest

from edgechat.engine.process.obituary import Death, count_oom_kills, describe, last_words, obituary


@pytest.fixture
def log(tmp_path):
    return tmp_path / "engine.log"


def test_an_abort_says_the_assertion(log):
    log.write_text(
        "load: 12 layers\n"
        "/src/ggml/src/ggml.c:77: GGML_ASSERT(a == b) failed\n"
        "Fatal Python error: Aborted\n\nThread 0x1:\n  File x\n"
    )
    assert describe(Death(-signal.SIGABRT, log)) == (
        "the engine crashed (SIGABRT): /src/ggml/src/ggml.c:77: GGML_ASSERT(a == b) failed"
    )


def test_an_uncaught_exception_of_c_plus_plus(log):
    log.write_text("terminate called after throwing an instance of 'std::length_error'\n  what():  vector\n")
    assert describe(Death(-signal.SIGABRT, log)) == "the engine crashed (SIGABRT): what():  vector"


@pytest.mark.parametrize(
    "words",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "/src/ggml/src/ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 651165728",
    ],
)
def test_an_abort_for_want_of_memory_says_what_to_do(log, words):
    log.write_text(f"{words}\n")
    text = describe(Death(-signal.SIGABRT, log, loading=True))
    assert text.startswith(
        "the engine crashed (SIGABRT) while it loaded the model: memory ran out; choose a "
    )


def test_a_kill_for_memory_says_what_to_do(log):
    text = describe(Death(-signal.SIGKILL, log, loading=True, oom_kill=True))
    assert text.startswith("the engine was killed (SIGKILL) while it loaded the model: memory ran out; ")
    assert "--ctx" in text


def test_any_other_kill(log):
    assert describe(Death(-signal.SIGKILL, log)) == "the engine was killed (SIGKILL)"
    assert obituary(Death(-signal.SIGKILL, log)).advice.startswith("try again; if memory is short, choose a ")
    assert obituary(Death(-signal.SIGTERM, log)).advice == "try again"
    assert obituary(Death(-signal.SIGKILL, log, oom_kill=True)).advice == ""


def test_another_processors_instructions(log):
    error = obituary(Death(-signal.SIGILL, log, loading=True))
    assert "another CPU" in str(error)
    assert 'CMAKE_ARGS="-DGGML_NATIVE=on"' in str(error)
    assert error.hopeless
    assert not obituary(Death(-signal.SIGSEGV, log)).hopeless


def test_a_crash_without_words_names_the_log(log):
    assert describe(Death(-signal.SIGSEGV, log)) == "the engine crashed (SIGSEGV)"
    log.write_text("all is well\n")
    assert describe(Death(-signal.SIGSEGV, log)) == f"the engine crashed (SIGSEGV); its log: {log}"


def test_a_bug_in_python_says_its_last_line(log):
    log.write_text("Traceback (most recent call last):\n  File x\nKeyError: 'x'\n")
    assert describe(Death(1, log)) == "the engine ended with exit code 1: KeyError: 'x'"


def test_other_ends(log):
    assert describe(Death(0, log)) == "the engine ended by itself"
    assert describe(Death(-64, log)) == "the engine crashed (SIGRTMAX)"
    assert describe(Death(None, log)) == "the engine was lost"
    assert describe(Death(-9, log, hung=True)) == "the engine stopped answering and was ended"


def test_words_that_a_person_can_see_are_one_line_even_of_a_broken_log(log):
    log.write_bytes(b"\xff\xfe\x00GGML_ASSERT(\x1b[31mx) failed" + b"y" * 1000 + b"\n")
    words = last_words(log)
    assert len(words) == 300
    assert "\n" not in words
    assert last_words(log.with_name("absent")) == ""


def test_the_count_of_kills_is_a_number():
    assert count_oom_kills() >= 0
