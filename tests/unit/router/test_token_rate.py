"""Bytes per token are learned for each class of text."""

from __future__ import annotations

from plumage_router.routing.decider import TokenRate

WORDS = b"once upon a time there was a router " * 40
EMOJI = "👩\u200d👧 日本 ".encode() * 80
MIXED = ("a few words, then 日本語 " * 60).encode()


def test_emoji_do_not_change_rate_of_words() -> None:
    rate = TokenRate()
    for _ in range(3):
        rate.learn(WORDS, len(WORDS) // 6)
    for _ in range(40):
        rate.learn(EMOJI, len(EMOJI))
    assert rate.of(WORDS) == 6.0
    assert rate.of(EMOJI) == 1.0
    assert rate.bytes_per_token == 1.0


def test_unknown_class_uses_rate_of_all() -> None:
    rate = TokenRate(4.5)
    assert rate.of(EMOJI) == 4.5
    rate.learn(WORDS, len(WORDS) // 6)
    assert rate.of(EMOJI) == rate.of(MIXED) == 6.0


def test_few_marks_keep_the_class_of_words() -> None:
    rate = TokenRate()
    rate.learn(WORDS, len(WORDS) // 6)
    rate.learn(MIXED, len(MIXED) // 2)
    assert rate.of(WORDS + "“so it is”".encode()) == 6.0
    assert rate.of(MIXED) == 2.0


def test_outliers_do_not_change_rate() -> None:
    rate = TokenRate()
    for odd in (1, 9, 1):
        rate.learn(WORDS, len(WORDS) // odd)
        for _ in range(5):
            rate.learn(WORDS, len(WORDS) // 6)
    assert rate.of(WORDS) == 6.0


def test_new_rate_counts_after_sixteen_prompts() -> None:
    rate = TokenRate()
    for _ in range(31):
        rate.learn(WORDS, len(WORDS) // 6)
    for _ in range(16):
        rate.learn(WORDS, len(WORDS) // 3)
    assert rate.of(WORDS) == 3.0


def test_short_prompts_and_missing_counts_are_ignored() -> None:
    rate = TokenRate()
    rate.learn(b"x" * 255, 100)
    rate.learn(WORDS, 0)
    assert rate.of(WORDS) == rate.bytes_per_token == 4.0
