"""Child processes that end when this process ends for any reason."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["GUARDED"]

_GUARD: Final = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
GUARDED: Final = (sys.executable, "-c", _GUARD)
"""Put it before a command. It asks Linux for a signal at the parent's death, then becomes the command."""
