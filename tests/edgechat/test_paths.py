import os
import stat

import pytest

from edgechat import paths, settings
from edgechat.errors import UsageError
from edgechat.library.local import list_models


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_one_variable_moves_everything(edgechat_home):
    folders = [
        paths.config_file().parent,
        paths.data_dir(),
        paths.cache_dir(),
        paths.state_dir(),
        paths.log_dir(),
    ]
    assert {folder.parent for folder in folders} == {edgechat_home}
    assert len(set(folders)) == 5
    assert [mode(folder) for folder in folders] == [0o700] * 5
    assert mode(edgechat_home) == 0o700
    assert paths.config_file() == edgechat_home / "config" / "config.toml"


def test_without_it_the_system_says_where(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGECHAT_HOME")
    for folder in (
        paths.config_file().parent,
        paths.data_dir(),
        paths.cache_dir(),
        paths.state_dir(),
        paths.log_dir(),
    ):
        assert "edgechat" in folder.parts
        assert os.environ["HOME"] in str(folder)
        assert mode(folder) == 0o700


def test_a_folder_that_cannot_be_made_is_one_clear_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="set EDGECHAT_HOME to a folder that can be written"):
        paths.data_dir()


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "x.json"
    paths.write_atomic(target, b"old")
    paths.write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert mode(target) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "x.json"
    paths.write_atomic(target, b"old")

    def fail(*_):
        raise OSError("the power went out")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="power"):
        paths.write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def unwritable(tmp_path, monkeypatch):
    """A home in which nothing can be made, whoever asks; and a folder for temporary files."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"edgechat-{os.getuid()}"


def test_where_nothing_can_be_written_what_can_be_done_without_goes_elsewhere(unwritable):
    assert paths.log_dir() == unwritable / "log"
    assert paths.cache_dir() == unwritable / "cache"
    assert paths.state_dir() == unwritable / "state"
    assert [mode(unwritable), mode(unwritable / "log")] == [0o700] * 2
    assert not paths.is_writable("data")
    with pytest.raises(UsageError, match="set EDGECHAT_HOME"):
        paths.data_dir()
    assert settings.load() == settings.Settings()
    assert list_models([]) is not None


def test_another_users_folder_for_temporary_files_is_not_taken(unwritable):
    unwritable.mkdir(mode=0o777)
    unwritable.chmod(0o777)
    with pytest.raises(UsageError, match="is not yours alone"):
        paths.log_dir()
