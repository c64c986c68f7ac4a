from pathlib import Path

import msgspec
import pytest

from edgechat import paths, settings
from edgechat.errors import UsageError
from edgechat.records import LoadSettings, SamplingSettings


def costs() -> str:
    """Where the engine keeps what it measured."""
    return str(paths.cache_dir() / "costs")


def test_no_file_means_the_defaults_which_are_the_engines_own():
    loaded = settings.load()
    assert loaded == settings.Settings()
    assert loaded.sampling.settings() == SamplingSettings()
    assert loaded.engine.load(Path("m.gguf")) == LoadSettings(
        path="m.gguf", draft="ngram", cost_folder=costs()
    )


def test_a_file_is_read():
    paths.config_file().write_text(
        '[chat]\ntheme = "light"\n[sampling]\ntemperature = 0\n[engine]\nctx = 4096\nkv_type = "q8_0"\n'
    )
    loaded = settings.load()
    assert loaded.chat.theme == "light"
    assert loaded.sampling.settings(seed=7) == SamplingSettings(temperature=0, seed=7)
    load = loaded.engine.load(Path("m.gguf"), n_ctx=None, n_threads=3)
    assert load == LoadSettings(
        path="m.gguf", n_ctx=4096, n_threads=3, kv_type="q8_0", draft="ngram", cost_folder=costs()
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engine]\nctx = 'big'", ", line 2: engine.ctx: give a whole number, not a text in quotes"),
        (
            "# ctx = 1\n\n[engine]  # mine\nthreads = 2\n  ctx = -1",
            ", line 5: engine.ctx: give a whole number of at least 0",
        ),
        ("engine.ctx = -1", ", line 1: engine.ctx: give a whole number of at least 0"),
        (
            "[chat]\nmodel='m'\n[engine]\n'ctx' = -1",
            ", line 4: engine.ctx: give a whole number of at least 0",
        ),
        ("\nengine = {ctx = -1}", ", line 2: engine.ctx: give a whole number of at least 0"),
        ("[sampling]\ntop_p = 1.5", ", line 2: sampling.top_p: give a number of at most 1"),
        (
            "[chat]\ntheme = 'x'",
            ", line 2: chat.theme: invalid enum value 'x', give dark or light",
        ),
        (
            "[chat]\ntheem = 'dark'",
            ", line 2: chat.theem is not a setting; did you mean chat.theme?",
        ),
        (
            "[cache]\nmemory_mb = '512MB'",
            ", line 2: cache.memory_mb: give a whole number of MiB, not a text in quotes",
        ),
        ("[network]\noffline = 'yes'", ", line 2: network.offline: give true or false, not a text in quotes"),
        (
            "[models]\nfolders = 'a'",
            ", line 2: models.folders: give a list in brackets, not a text in quotes",
        ),
        (
            "[models]\nfolders = ['a', 3]",
            ", line 2: models.folders: give a text in quotes, not a whole number",
        ),
        (
            "[chat]\nsystem_prompt = 3",
            ", line 2: chat.system_prompt: give a text in quotes, not a whole number",
        ),
        ("[chta]", ", line 1: chta is not a setting; did you mean chat?"),
        ("zzz = 1", ", line 1: zzz is not a setting"),
        ("chat = 3", ", line 1: chat: give a section, not a whole number"),
    ],
)
def test_what_is_wrong_names_the_file_the_line_and_the_key_in_one_line(text, says):
    with pytest.raises(UsageError) as raised:
        settings.parse(text, "config.toml")
    assert str(raised.value) == f"config.toml{says}"


@pytest.mark.parametrize(
    ("line", "prompt"), [("", None), ('system_prompt = ""', ""), ("system_prompt = 'Be kind.'", "Be kind.")]
)
def test_an_empty_system_prompt_is_not_the_same_as_none(line, prompt):
    assert settings.parse(f"[chat]\n{line}", "config.toml").chat.system_prompt == prompt


@pytest.mark.parametrize(
    ("text", "line"), [("[chat]\ntheme = dark\n", 2), ("[chat]\n\n[engine", 3), ("a = 1\na = 2\n", 2)]
)
def test_what_is_no_toml_says_where(text, line):
    with pytest.raises(UsageError) as raised:
        settings.parse(text, "config.toml")
    assert str(raised.value).startswith(f"config.toml, line {line}: ")
    assert "\n" not in str(raised.value)
    assert "(at " not in str(raised.value)


def test_a_file_that_is_no_text():
    paths.config_file().write_bytes(b"[chat]\n\xff\xfe")
    with pytest.raises(UsageError, match=r"config\.toml, line 2: can't be read, it is not UTF-8"):
        settings.load()


def test_a_folder_in_its_place():
    paths.config_file().mkdir()
    with pytest.raises(UsageError) as raised:
        settings.load()
    assert str(raised.value) == f"{paths.config_file()} can't be read: Is a directory"


def test_values_of_the_command_line_are_checked_too():
    with pytest.raises(UsageError, match="temperature of -1"):
        settings.SamplingSection().settings(temperature=-1.0)
    with pytest.raises(UsageError, match="999 threads"):
        settings.EngineSection().load(Path("m.gguf"), n_threads=999)


def test_every_setting_has_a_sentence_for_the_person():
    described = list(settings.describe())
    for one in described:
        assert one.sentence.endswith("."), one
        assert one.sentence[0].isupper(), one
    keys = {(one.section, one.key) for one in described}
    defaults = msgspec.to_builtins(settings.Settings())
    assert keys == {(section, key) for section in defaults for key in defaults[section]}
