"""What is kept of what comes by."""

import pytest
import torch

from quantize.methods.sampling import TokenSample, spread

pytestmark = pytest.mark.oracle


def test_a_sample_is_even() -> None:
    """Token n is kept where n is a multiple of the stride, however they come."""
    sample = TokenSample(8)
    assert sample.tokens() is None
    at = 0
    for count in (3, 4, 1, 10, 0, 7):
        numbers = torch.arange(at, at + count, dtype=torch.float32)
        sample.add(numbers[None, :, None].expand(1, count, 2))
        at += count
    found = sample.tokens()
    assert found is not None
    assert found[:, 0].tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert spread(found, 3)[:, 1].tolist() == [0, 12, 24]
