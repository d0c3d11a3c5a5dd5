"""Prompts become the tokenizer's own ids, and answers are text that tokenizes to the same ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage_engine.simulator.events.block_hashes import block_hashes, root
from plumage_engine.simulator.model.answers import Limits, compose
from plumage_engine.simulator.model.text import Text

FOLDER: Path = resolve("builtin://tiny-chat")
DATA = (FOLDER / "tokenizer.json").read_bytes()
TOKENIZER = Tokenizer.from_buffer(DATA)
TEXT = Text(DATA)


AWKWARD = ["<|im_start|>", "<|im_end|>", "\n", " ", "user", "naïve 雪", "  x\r\n", "def f():", "", "'s"]
PIECES = st.lists(st.sampled_from(AWKWARD))


@settings(deadline=None, max_examples=200)
@given(pieces=PIECES, special=st.booleans())
def test_cached_pieces_give_the_same_ids_as_the_whole(pieces: list[str], special: bool) -> None:
    prompt = "".join(pieces)
    assert TEXT.encode(prompt, add_special_tokens=special) == TOKENIZER.encode(prompt, add_special_tokens=special).ids


def test_tokenizer_that_reads_across_special_tokens_gets_the_whole_text() -> None:
    spec = json.loads(DATA)
    spec["normalizer"] = {"type": "Replace", "pattern": {"String": "<|im_end|>x"}, "content": "y"}
    changed = json.dumps(spec).encode()
    prompt = "a<|im_end|>x<|im_start|>b"
    assert (
        Text(changed).encode(prompt, add_special_tokens=False)
        == Tokenizer.from_str(changed.decode()).encode(prompt, add_special_tokens=False).ids
    )


def test_answer_is_text_that_tokenizes_to_its_own_ids() -> None:
    answer = compose(TEXT, 7, 200, Limits(300, ignore_eos=True))
    whole = "".join(answer.texts)
    assert whole == TEXT.decode(answer.token_ids)
    assert TEXT.encode(whole, add_special_tokens=False) == answer.token_ids
    framed = f"<|im_start|>assistant\n{whole}<|im_end|>\n"
    ids = TEXT.encode(framed, add_special_tokens=False)
    assert any(ids[at : at + 300] == answer.token_ids for at in range(8))


def test_prompt_and_seed_determine_the_answer() -> None:
    limits = Limits(20, ignore_eos=True)
    assert compose(TEXT, 1, 200, limits) == compose(TEXT, 1, 200, limits)
    assert compose(TEXT, 2, 200, limits) != compose(TEXT, 1, 200, limits)
    assert compose(TEXT, 1, 200, Limits(20, ignore_eos=True, seed=5)) != compose(TEXT, 1, 200, limits)


def test_natural_ends_have_the_stated_mean() -> None:
    lengths = [len(compose(TEXT, prompt, 50, Limits(10_000)).token_ids) for prompt in range(2000)]
    assert 46 < sum(lengths) / len(lengths) < 54


@given(prompt=st.integers(0, 500), most=st.integers(1, 40), least=st.integers(0, 40), eos=st.booleans())
def test_length_limits_hold(prompt: int, most: int, least: int, eos: bool) -> None:
    answer = compose(TEXT, prompt, 15, Limits(most, min(least, most), eos))
    assert min(least, most) <= len(answer.token_ids) <= most
    assert len(answer.texts) == len(answer.token_ids)
    assert (answer.finish_reason == "length") >= eos
    assert len(answer.token_ids) == most or answer.finish_reason == "stop"


@given(prompt=st.integers(0, 200), cut=st.integers(0, 60), length=st.integers(1, 9), least=st.integers(0, 10))
def test_stop_string_cuts_the_text_where_it_starts(prompt: int, cut: int, length: int, least: int) -> None:
    whole = "".join(compose(TEXT, prompt, 15, Limits(20, ignore_eos=True)).texts)
    stop = whole[cut : cut + length] or "\x00"
    answer = compose(TEXT, prompt, 15, Limits(20, least, ignore_eos=True, stop=[stop, "never met"]))
    protected = len("".join(compose(TEXT, prompt, 15, Limits(20, ignore_eos=True)).texts[:least]))
    at = whole.find(stop, protected)
    assert "".join(answer.texts) == (whole if at < 0 else whole[:at])
    assert answer.stop_reason == (None if at < 0 else stop)
    assert len(answer.token_ids) >= least


def test_chained_hashes_depend_on_all_earlier_blocks_and_on_the_root() -> None:
    ids = list(range(100))
    start = root("model")
    hashes = block_hashes(ids, 16, start)
    assert len(hashes) == 6
    assert block_hashes(ids[:40], 16, start) == hashes[:2]
    changed = block_hashes([*ids[:20], 9999, *ids[21:]], 16, start)
    assert [old == new for old, new in zip(hashes, changed, strict=True)] == [True, *[False] * 5]
    roots = {root("model"), root("model", "lora"), root("model", "", "lora"), root("modellora"), root("mode", "l")}
    assert len({block_hashes(ids, 16, start)[0] for start in roots}) == 5


def test_invalid_tokenizer_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json can't be loaded: .*; fetch the file again"):
        Text(b"{}")
