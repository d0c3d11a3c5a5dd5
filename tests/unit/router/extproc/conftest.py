"""A peer whose connection has begun."""

from __future__ import annotations

import pytest
from support.http2_peer import BEGIN, Peer


@pytest.fixture
def peer() -> Peer:
    made = Peer()
    made.send(BEGIN)
    return made
