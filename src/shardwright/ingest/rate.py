"""How fast frames come: the slope over the last two seconds, sampled by the ingest thread twice a second."""

from __future__ import annotations

from collections import deque

SAMPLE_S = 0.5
_SAMPLES = 5


class Rate:
    """Written by the ingest thread; ``hz`` and ``bytes_per_s`` may be read from any."""

    def __init__(self, now_s: float) -> None:
        self.hz = self.bytes_per_s = 0.0
        self._samples: deque[tuple[float, int, int]] = deque([(now_s, 0, 0)], maxlen=_SAMPLES)

    def sample(self, now_s: float, frames: int, nbytes: int) -> None:
        """``frames`` and ``nbytes`` have come in all."""
        self._samples.append((now_s, frames, nbytes))
        then_s, frames_then, bytes_then = self._samples[0]
        if now_s > then_s:
            self.hz = (frames - frames_then) / (now_s - then_s)
            self.bytes_per_s = (nbytes - bytes_then) / (now_s - then_s)
