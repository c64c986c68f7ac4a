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
        ("[engine]\nctx = 'big'", "engine.ctx: expected `int`, got `str`"),
        ("[engine]\nctx = -1", "engine.ctx: expected `int` >= 0"),
        ("[sampling]\ntop_p = 1.5", "sampling.top_p: expected `float` <= 1.0"),
        ("[chat]\ntheme = 'x'", "chat.theme: invalid enum value 'x'"),
        ("[chat]\ntheem = 'dark'", "chat.theem is not a setting; did you mean chat.theme?"),
        ("[chta]", "chta is not a setting; did you mean chat?"),
        ("zzz = 1", "zzz is not a setting"),
        ("chat = 3", "chat: expected `object`, got `int`"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key_in_one_line(text, says):
    with pytest.raises(UsageError) as raised:
        settings.parse(text, "config.toml")
    assert str(raised.value) == f"config.toml: {says}"


def test_what_is_no_toml_says_where():
    with pytest.raises(UsageError, match=r"^config.toml is not TOML: .*line 2"):
        settings.parse("[chat]\ntheme = dark\n", "config.toml")


def test_a_file_that_is_no_text():
    paths.config_file().write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="can't be read"):
        settings.load()


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
