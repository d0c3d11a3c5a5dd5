"""What `make check-vllm` finds, on small trees that stand for versions of vLLM."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.vllm_sources.check import main, moved
from plumage_bench.vllm_sources.tree import Sources

SCHEDULER = """
class Base:
    running: list
    def finish(self, request, delay=False): ...

class Scheduler(Base):
    def __init__(self, config):
        self.waiting = make(config)
    def schedule(self, *, throttle=False): ...
"""
OUTPUT = """
from dataclasses import dataclass
if True:
    from vllm.core.sched import Scheduler as Moved

@dataclass
class Output(Moved):
    tokens: int
    drafts: int = 0
"""
OURS = """
from vllm.core.sched import Scheduler
from vllm.core.output import Output, Moved
SURFACE: Surface = {
    Scheduler: ("schedule(throttle)", "finish(request, delay)", "running"),
    Output: ("__init__(tokens, drafts)", "schedule"),
}
LIVE: Live = {Moved: ("waiting",)}
READ: Read = {Output: ("drafts",)}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in (("vllm/__init__", ""), ("vllm/core/sched/__init__", SCHEDULER), ("vllm/core/output", OUTPUT)):
        file = tmp_path / "site" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "site"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    (tmp_path / "ours" / "compat").mkdir(parents=True)
    (tmp_path / "ours" / "compat" / "one.py").write_text(OURS)
    return tmp_path / "ours"


def changed(root: Path, file: str, old: str, new: str) -> None:
    path = root / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_complete_tree_has_no_findings(root: Path, ours: Path) -> None:
    assert moved(Sources(root), ours) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "finding"),
    [
        ("vllm/core/sched/__init__.py", "def schedule", "def plan", "vllm.core.sched.Scheduler has no schedule"),
        ("vllm/core/sched/__init__.py", "throttle", "hold", "vllm.core.sched.Scheduler.schedule takes no throttle"),
        ("vllm/core/sched/__init__.py", ", delay=False", "", "vllm.core.sched.Scheduler.finish takes no delay"),
        ("vllm/core/sched/__init__.py", "running: list", "runs: list", "vllm.core.sched.Scheduler has no running"),
        ("vllm/core/sched/__init__.py", "self.waiting", "self.queue", "vllm.core.output.Moved has no waiting"),
        ("vllm/core/sched/__init__.py", "class Scheduler", "class Planner", "vllm.core.sched has no Scheduler"),
        ("vllm/core/output.py", "drafts: int", "guesses: int", "vllm.core.output.Output has no drafts"),
        ("vllm/core/output.py", "drafts: int", "guesses: int", "vllm.core.output.Output.__init__ takes no drafts"),
    ],
)
def test_moved_names_are_reported(root: Path, ours: Path, file: str, old: str, new: str, finding: str) -> None:
    changed(root, file, old, new)
    assert f"compat/one.py: {finding}" in moved(Sources(root), ours)


def test_missing_module_is_reported(root: Path, ours: Path) -> None:
    (root / "vllm/core/output.py").unlink()
    assert moved(Sources(root), ours) == [
        f"compat/one.py: vllm.core.output has no {name}" for name in ("Output", "Moved")
    ]


@pytest.mark.parametrize(
    ("table", "finding"),
    [
        ('_LIVE = ("running",)', "_LIVE is no table that can be read: annotate it as Surface, Live, Read or Made"),
        ('MORE: dict = {Moved: ("waiting",)}', "MORE is no table that can be read: annotate it as Surface, Live,"),
        ("MORE: Live = {**LIVE}", "a table in line 10 can't be read: its keys are not all names of classes"),
        ('MORE: Live = {Moved: ["waiting"]}', "a table in line 10 can't be read: the members of Moved are no tuple"),
        ("MORE: Live = dict(LIVE)", "a table in line 10 can't be read: it is not a dictionary, written out"),
        ('MORE: Live = {Other: ("waiting",)}', "Other, in a table, is not imported from vLLM"),
        ('MORE: Read = {Moved: ("wating",)}', "vllm.core.output.Moved has no wating"),
    ],
)
def test_unsupported_table_is_reported(root: Path, ours: Path, table: str, finding: str) -> None:
    with (ours / "compat" / "one.py").open("a") as file:
        file.write(f"{table}\n")
    (line,) = moved(Sources(root), ours)
    assert line.startswith(f"compat/one.py: {finding}")


def test_imports_of_other_modules_are_checked_too(root: Path, ours: Path) -> None:
    (ours / "hooks.py").write_text("def hook():\n    from vllm.core.sched import Scheduler, Planner\n")
    assert moved(Sources(root), ours) == ["hooks.py: vllm.core.sched has no Planner"]


CALLED = """
from dataclasses import dataclass, field
from typing import ClassVar, overload
import msgspec

class Event(msgspec.Struct, tag=True):
    keys: list

class Stored(Event, kw_only=True):
    size: int
    medium: str | None = None

@dataclass(frozen=True)
class Spec:
    ids: list
    kind: ClassVar[str]
    seen: set = field(default_factory=set)
    made: int = field(init=False)

class Manager:
    def __init__(self, chunks, *, events=False): ...

class Plain: ...

@overload
def group(key): ...
def group(key, number=0, *, salt=None): ...
def loose(*keys, **options): ...
from collections import deque
class Queue(deque): ...
"""
CALLS = """
from vllm.called import Plain, Spec, loose
from ours.compat.two import Manager, Queue, Stored, group

class Ours(Manager):
    def __init__(self, **more):
        super().__init__(4, events=True, **more)
class Other(Spec):
    pass
def call(things):
    Stored([1], size=4)
    Spec([1], seen=set())
    Other([1])
    Plain()
    Queue([1])
    group(1, salt=2)
    loose(1, 2, other=3)
    return [group(*one) for one in things]
"""


@pytest.fixture
def calling(root: Path, ours: Path) -> Path:
    (root / "vllm/called.py").write_text(CALLED)
    (ours / "compat" / "two.py").write_text("from vllm.called import Manager, Queue, Stored, group\n")
    (ours / "calls.py").write_text(CALLS)
    return ours


def test_accepted_calls_are_not_reported(root: Path, calling: Path) -> None:
    assert moved(Sources(root), calling) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("    size: int", "    size: int\n    owner: str", "Stored.__init__ wants owner"),
        ("    size: int", "    length: int", "Stored.__init__ takes no size"),
        ("    size: int", "    length: int", "Stored.__init__ wants length"),
        ("    keys: list", "    keys: list\n    owner: str", "Stored.__init__ wants owner"),
        ("    ids: list", "    ids: list\n    sizes: list", "Spec.__init__ wants sizes"),
        ("    ids: list", "    seen: set\n    ids: list", "Spec.__init__ has seen at another place"),
        ("field(init=False)", "field(repr=False)", "Spec.__init__ wants made"),
        ("    ids: list", "    _: KW_ONLY\n    ids: list", "Spec.__init__ takes 0 in order, and 1 are passed"),
        ("events=False", "events=False, owner", "Manager.__init__ wants owner"),
        ("chunks, *, events", "chunks, *, listeners", "Manager.__init__ takes no events"),
        ("class Plain: ...", "class Plain:\n    def __init__(self, config): ...", "Plain.__init__ wants config"),
        ("def group(key, number=0", "def group(key, number", "group wants number"),
        ("def group(key, number=0, *", "def group(*", "group takes 0 in order, and 1 are passed"),
        ("salt=None", "pepper=None", "group takes no salt"),
        ("def loose(*keys, **options)", "def loose(*keys)", "loose takes no other"),
        ("def loose(*keys, **options): ...", "loose = group", "loose is no function and no class that could be read"),
    ],
)
def test_refused_call_is_reported(root: Path, calling: Path, old: str, new: str, finding: str) -> None:
    changed(root, "vllm/called.py", old, new)
    assert f"calls.py: vllm.called.{finding}" in moved(Sources(root), calling)


def test_constructor_with_hidden_arguments_has_a_table(root: Path, calling: Path) -> None:
    table = calling / "compat" / "three.py"
    table.write_text('from vllm.called import Manager\nMADE: Made = {Manager: ("chunks", "events")}\n')
    assert moved(Sources(root), calling) == []
    changed(root, "vllm/called.py", "events=False", "events, region")
    assert "compat/three.py: vllm.called.Manager.__init__ wants region" in moved(Sources(root), calling)


def test_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no package vllm"):
        Sources(tmp_path)
    assert main([str(tmp_path)]) == 2


def test_wheel_is_read_without_being_run(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This tree lacks nearly everything that the plugin hooks, and would fail if it were imported."""
    (root / "vllm/__init__.py").write_text("raise SystemExit('was run')")
    wheel = tmp_path / "vllm-0.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in root.rglob("*.py"):
            archive.write(file, file.relative_to(root))
    assert main([str(wheel)]) == 1
    assert "compat/scheduler.py: vllm.v1.core.sched.scheduler has no Scheduler" in capsys.readouterr().out


def test_broken_wheel_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "vllm-0.0.0-py3-none-any.whl"
    wheel.write_bytes(b"no archive")
    assert main([str(wheel)]) == 2
    assert "check-vllm:" in capsys.readouterr().err
