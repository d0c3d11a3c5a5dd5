"""Which memory is asked to lie in large pages; that asking harms nothing."""

from __future__ import annotations

from plumage_router.largepages import SIZE, collapse, pieces, resident

MAPS = """\
55d000000000-55d000900000 rw-p 00000000 00:00 0                          [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0001000000-7f0001100000 rw-p 00000000 00:00 0
7f0002000000-7f0003000000 r--p 00000000 00:00 0
7f0004000000-7f0005000000 r-xp 00000000 fe:00 1234                       /usr/lib/libpython3.11.so.1.0
7f0006000000-7f0007000000 rw-p 00000000 fe:00 1234                       /usr/lib/libpython3.11.so.1.0
7f0008000000-7f0009000000 rw-s 00000000 00:01 99                         /dev/zero (deleted)
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0                          [stack]
"""


def test_whole_large_pages_of_private_memory_are_found() -> None:
    assert list(pieces(MAPS.splitlines())) == [(0x55D000000000, 4 * SIZE), (0x7F0000200000, 2 * SIZE)]


def test_asking_leaves_memory_as_it_was() -> None:
    kept = [bytes([number % 251]) * 4000 for number in range(4000)]
    before = resident()
    large = collapse()
    assert large % SIZE == 0
    assert all(piece == bytes([number % 251]) * 4000 for number, piece in enumerate(kept))
    assert before > 0
