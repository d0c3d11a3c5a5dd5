"""How many bytes a token has is learned by script: what comes in rows says nothing of the others."""

from __future__ import annotations

from plumage_router.request.token_rate import TokenRate

WORDS = b"once upon a time there was a router " * 40
EMOJI = "👩\u200d👧 日本 ".encode() * 80
MIXED = ("a few words, then 日本語 " * 60).encode()


def test_a_row_of_emoji_says_nothing_of_words() -> None:
    rate = TokenRate()
    for _ in range(3):
        rate.learn(WORDS, len(WORDS) // 6)
    for _ in range(40):
        rate.learn(EMOJI, len(EMOJI))
    assert rate.of(WORDS) == 6.0
    assert rate.of(EMOJI) == 1.0
    assert rate.bytes_per_token == 1.0


def test_what_nobody_has_counted_is_guessed_by_all_others() -> None:
    rate = TokenRate(4.5)
    assert rate.of(EMOJI) == 4.5
    rate.learn(WORDS, len(WORDS) // 6)
    assert rate.of(EMOJI) == rate.of(MIXED) == 6.0


def test_a_few_marks_among_words_are_words() -> None:
    rate = TokenRate()
    rate.learn(WORDS, len(WORDS) // 6)
    rate.learn(MIXED, len(MIXED) // 2)
    assert rate.of(WORDS + "“so it is”".encode()) == 6.0
    assert rate.of(MIXED) == 2.0


def test_the_few_that_are_far_off_move_nothing() -> None:
    rate = TokenRate()
    for odd in (1, 9, 1):
        rate.learn(WORDS, len(WORDS) // odd)
        for _ in range(5):
            rate.learn(WORDS, len(WORDS) // 6)
    assert rate.of(WORDS) == 6.0


def test_what_is_new_counts_after_sixteen_prompts() -> None:
    rate = TokenRate()
    for _ in range(31):
        rate.learn(WORDS, len(WORDS) // 6)
    for _ in range(16):
        rate.learn(WORDS, len(WORDS) // 3)
    assert rate.of(WORDS) == 3.0


def test_short_prompts_and_answers_without_a_count_teach_nothing() -> None:
    rate = TokenRate()
    rate.learn(b"x" * 255, 100)
    rate.learn(WORDS, 0)
    assert rate.of(WORDS) == rate.bytes_per_token == 4.0
