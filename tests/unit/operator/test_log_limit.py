"""Repeated log lines: one per cause and interval, with their number."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from plumage_operator.observability.logs import OneLinePerCause, cause


class Log:
    """A separate logger with the filter, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.text = io.StringIO()
        self.limit = OneLinePerCause(lambda: self.now, 30.0)
        self.handler = logging.StreamHandler(self.text)
        self.handler.addFilter(self.limit)
        self.loggers = [logging.getLogger(name) for name in ("test_log_limit", "kopf.test_log_limit")]
        for logger in self.loggers:
            logger.addHandler(self.handler)
            logger.propagate = False
        self.ours, self.kopf = self.loggers

    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    for logger in made.loggers:
        logger.removeHandler(made.handler)
        logger.propagate = True


def test_first_line_of_a_cause_is_written_at_once_and_the_rest_is_counted(log: Log) -> None:
    for number in range(56):
        log.ours.warning("pool %d: away", number, extra=cause("away"))
    assert log.lines() == ["pool 0: away"]
    log.now = 30.0
    log.limit.flush()
    assert log.lines()[1:] == ["pool 55: away (54 more like it within 30 s)"]


def test_lasting_cause_has_one_line_an_interval(log: Log) -> None:
    for number in range(3000):
        log.now = number / 10
        log.ours.warning("away", extra=cause("away"))
        log.limit.flush()
    assert len(log.lines()) == 10


def test_causes_do_not_hide_one_another(log: Log) -> None:
    log.ours.warning("a", extra=cause("refused", "Service"))
    log.ours.warning("b", extra=cause("refused", "Deployment"))
    log.ours.warning("c", extra=cause("refused", "Service"))
    assert log.lines() == ["a", "b"]


def test_line_without_a_cause_is_always_written(log: Log) -> None:
    for _ in range(5):
        log.ours.warning("news")
    assert log.lines() == ["news"] * 5


def test_attempts_of_all_watches_are_one_cause(log: Log) -> None:
    for attempt in range(2, 5):
        for plural in ("pods", "services", "deployments"):
            log.kopf.error(f"Request attempt #{attempt}/1009 failed; will retry: GET /{plural}")
    log.kopf.error("something else")
    assert log.lines() == ["Request attempt #2/1009 failed; will retry: GET /pods", "something else"]


def test_suppressed_lines_are_reported_at_the_end_of_the_process(log: Log) -> None:
    for number in range(3):
        log.ours.warning("pool %d", number, extra=cause("away"))
    log.limit.flush_all()
    assert log.lines() == ["pool 0", "pool 2 (1 more like it within 30 s)"]


def test_flush_writes_nothing_where_nothing_was_suppressed(log: Log) -> None:
    log.ours.warning("once", extra=cause("away"))
    log.now = 31.0
    log.limit.flush()
    log.ours.warning("again", extra=cause("away"))
    assert log.lines() == ["once", "again"]


def test_remembered_causes_are_bounded(log: Log) -> None:
    for number in range(2_000):
        log.ours.warning("x", extra=cause(number))
    assert len(log.limit._open) == 1_000
