"""What sensors tell of a card that is held back."""

from __future__ import annotations

from tests.target_cuda.fake_gpu import FakeNvml
from tfsearch.target.cuda import node


class Hot(FakeNvml):
    """A card that its hardware slows down."""

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: bytes) -> int:
        return 0x8 | 0x4


class Capped(FakeNvml):
    """A card at its power cap, as busy ones are, and idle."""

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: bytes) -> int:
        return 0x4 | 0x1


class Broken(FakeNvml):
    """NVML that does not start."""

    def nvmlInit(self) -> None:
        raise RuntimeError("driver mismatch")


def test_a_card_that_is_held_back_or_cannot_be_asked_is_a_problem() -> None:
    assert list(node.problems("GPU-1", Capped())) == []
    (line,) = node.problems("GPU-1", Hot())
    assert line == "GPU-1: the card is held back now: hardware slowdown"
    (line,) = node.problems("GPU-1", Broken())
    assert "cannot be read: RuntimeError: driver mismatch" in line
