"""What is computed with."""

import pytest

from edgechat.errors import ExitCode, from_exception
from quantize.devices import usable_device
from quantize.errors import NoSuchDevice


@pytest.mark.parametrize(("name", "answer"), [("cuda", "torch.cuda"), ("mps", "torch.backends.mps")])
def test_a_device_that_is_not_there_is_not_supported_here(
    name: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(f"{answer}.is_available", lambda: False)
    with pytest.raises(NoSuchDevice, match=f"--device {name}: .*: --device cpu works") as found:
        usable_device(name)
    told = from_exception(found.value)
    assert told is not None
    assert told.code is ExitCode.UNSUPPORTED
    assert usable_device("cpu") == "cpu"
