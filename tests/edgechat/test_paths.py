import os
import stat

import pytest

from edgechat import paths
from edgechat.errors import UsageError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_one_variable_moves_everything(edgechat_home):
    folders = [
        paths.config_dir(),
        paths.data_dir(),
        paths.cache_dir(),
        paths.state_dir(),
        paths.log_dir(),
    ]
    assert {folder.parent for folder in folders} == {edgechat_home}
    assert len(set(folders)) == 5
    assert [mode(folder) for folder in folders] == [0o700] * 5
    assert mode(edgechat_home) == 0o700
    assert paths.config_file() == paths.config_dir() / "config.toml"


def test_without_it_the_system_says_where(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGECHAT_HOME")
    for folder in (
        paths.config_dir(),
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
        paths.config_dir()


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
