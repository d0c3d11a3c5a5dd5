"""What one peer may cost without asking for anything: frames without content, and streams that it drops at once.

Each such frame is small and legal, so only their number shows a flood:

- PING and SETTINGS (CVE-2019-9512, 9515).
- Empty DATA (CVE-2019-9518).
- Streams that are reset before they are answered (CVE-2023-44487).
- Errors by which a peer makes us reset streams (CVE-2025-8671).

Frames that carry data are bounded by windows instead.
"""

from __future__ import annotations

from typing import Final

from plumage_router.extproc.frames import ENHANCE_YOUR_CALM, PeerError

__all__ = ["PeerBudget"]

_SECONDS: Final = 10.0
_FRAMES: Final = 2_000  # without content, in that time
_FOR_DATA: Final = 4  # a peer may answer a DATA frame with so many frames, for example WINDOW_UPDATE
_RESETS: Final = 1_000  # in that time. A proxy resets a stream when its client leaves, rarely within a second


class PeerBudget:
    """Counts for one connection that began at `now`. Raises PeerError when a peer exceeds its budget."""

    __slots__ = ("_ends", "_frames", "_resets")

    def __init__(self, now: float) -> None:
        self._ends = now + _SECONDS
        self._frames = self._resets = 0

    def sent_data(self) -> None:
        """Counts a DATA frame that was sent."""
        self._frames -= _FOR_DATA

    def take_frame(self, now: float) -> None:
        """Counts a frame without content."""
        self._frames += 1
        if self._frames > _FRAMES and not self._renewed(now):
            raise PeerError(ENHANCE_YOUR_CALM)

    def take_reset(self, now: float) -> None:
        """Counts a stream that was dropped before its answer, or for an error of the peer."""
        self._resets += 1
        if self._resets > _RESETS and not self._renewed(now):
            raise PeerError(ENHANCE_YOUR_CALM)

    def _renewed(self, now: float) -> bool:
        """Begins the next ten seconds, if these are over."""
        if now < self._ends:
            return False
        self._ends = now + _SECONDS
        self._frames = self._resets = 0
        return True
