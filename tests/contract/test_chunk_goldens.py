"""Golden vectors of the byte-chunk chain: routers and agents of different versions share these keys.

A change here changes the directory's schema version. Never edit this file to make a test pass.
"""

from __future__ import annotations

import pytest

from plumage.hashing.chunks import PIECE, chain, seed

SEEDS = {
    ("m", "", ""): 0x533749DD3F17BB88,
    ("meta-llama/Llama-3.1-8B-Instruct", "", ""): 0x542E9BD16D39D83D,
    ("m", "lora-a", ""): 0x2F643CC9A321708F,
    ("m", "", "tenant-b"): 0x5F242422DC7B4E5E,
    ("m", "lora-a", "tenant-b"): 0x734D0A74F548A67E,
    ("modèle 🙂", "é", "ß"): 0x8EBE76F35D5D92C2,
    ("ab", "c", ""): 0x7D4C669CEDDF937B,
    ("a", "bc", ""): 0xCA7DECD72162EF31,
}

CHAINS = {
    "zeros, with a tail": (
        bytes(3 * 256 + 17),
        ("m", "", ""),
        [0xB0B53B29C17398F2, 0x615EC9FD287F7B54, 0xE47762784DB1A3E0],
    ),
    "a ramp, whole chunks": (
        bytes(i * 7 % 256 for i in range(1024)),
        ("m", "", ""),
        [0xD90510CC8277B503, 0x8D1EAA80ED9509C6, 0x7CC05BE7B170E106, 0x50C88AAF64B77AE7],
    ),
    "characters cut by the chunk's end": (
        ("naïve café 日本語 🙂 " * 40).encode(),
        ("modèle 🙂", "é", "ß"),
        [0xE5C745BD0FA1247E, 0xB05A6B14B9AAADD0, 0x46D222162951DCB2, 0x8AF0A33D107971F1],
    ),
}


# Positions of some keys in the chain of 150,000 zeros: the last of each size of chunk, the first of the next, the last.
LONG = {
    63: 0x5D8EC9AF2C54ADC8,
    64: 0x7A6A1CF5CDA71265,
    95: 0xEE2E8CB77B0DE2E3,
    96: 0x8CF3E07EA39EB53F,
    127: 0xC78E12796E2B2EA5,
    128: 0xBDB020275D5DE8CA,
    159: 0x0D0E467BFA138009,
    160: 0x4EE5413BC1E49B41,
    163: 0x81532E8CE6B2CC86,
}


def test_piece_is_256_bytes() -> None:
    assert PIECE == 256


def test_chunks_that_grow_are_golden() -> None:
    keys = chain(bytes(150_000), seed("m"))
    assert len(keys) == 164
    assert {place: keys[place] for place in LONG} == LONG


@pytest.mark.parametrize("fields", SEEDS, ids=repr)
def test_seed_is_golden(fields: tuple[str, str, str]) -> None:
    assert seed(*fields) == SEEDS[fields]


@pytest.mark.parametrize("name", CHAINS)
def test_chain_is_golden(name: str) -> None:
    data, fields, expected = CHAINS[name]
    assert chain(data, seed(*fields)) == expected
