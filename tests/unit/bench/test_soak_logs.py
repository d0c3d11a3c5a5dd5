"""What the bench `soak` keeps of the logs of a pool's processes."""

from __future__ import annotations

from pathlib import Path

from plumage_bench.benches.soak import tracebacks

_RAISED = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise ValueError("this one")
ValueError: this one"""


def test_each_traceback_is_kept_with_its_log_and_the_line_before(tmp_path: Path) -> None:
    (tmp_path / "router.log").write_text(f"begin\nthe callback failed\n{_RAISED}\nend\n")
    (tmp_path / "engine-0.log.1").write_text(f"{_RAISED}\n{_RAISED}\n")
    (tmp_path / "router.json").write_text(_RAISED)
    found = tracebacks(tmp_path)
    assert [one.splitlines()[0] for one in found] == ["engine-0.log.1", "engine-0.log.1", "router.log"]
    assert "the callback failed" in found[2]
    assert all("ValueError: this one" in one for one in found)


def test_logs_without_a_traceback_give_none(tmp_path: Path) -> None:
    (tmp_path / "router.log").write_text("all is well\n")
    assert tracebacks(tmp_path) == []
