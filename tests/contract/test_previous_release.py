"""The previous release (by its tag) and this version read each other's documents: configuration files of routers and
agents, pools with their status, and entries of the directory. Each side runs from its own tree, test doubles included.

Before the first tag, the last committed tree stands for the previous release, so that the mechanism is exercised.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from support.needs import missing

_ROOT = Path(__file__).parents[2]
_PRESENT: str = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
_BOTH = """
import ast, json, sys
from plumage.directory import schema
from plumage.settings.agent_config import AgentConfig
from plumage_operator.resources.context import read_pool
from plumage.settings.router_config import RouterConfig
from support.operator_world import World, pool_object
parts = (schema.Beat, AgentConfig, RouterConfig, read_pool, World)
assert all(sys.modules[one.__module__].__file__.startswith(f"{sys.argv[1]}/") for one in parts), "another tree"
"""
_WRITE = """
def kept(found):  # as a server gives it back
    return {name.encode(): one if isinstance(one, bytes) else str(one).encode() for name, one in found.items()}
world = World(pool_object())
world.converge()
documents = {"pool": world.pool}
for (kind, _), one in world.objects.items():
    documents |= one["data"] if kind == "ConfigMap" else {}
records = schema.RECORD.pack(7, schema.Op.ADD << 28 | schema.Tier.GPU << 24 | 64)
beat = schema.Beat("1.a", schema.State.READY, schema.Load(2, 3, 0.5), 4, 1, 7, "tiny@0123456789abcdef")
documents |= {"beat": kept(beat.to_hash()), "entry": kept(schema.pack_entry(records, (1, 7)))}
print({**documents, "bucket": schema.pack_bucket(4, [records])})
"""
_READ = """
documents = ast.literal_eval(sys.stdin.read())
router = RouterConfig.parse(json.loads(documents["router.json"]), "router.json")
agent = AgentConfig.parse({**json.loads(documents["agent.json"]), "replica": "chat-0"}, "agent.json")
pool, world = read_pool(documents["pool"]), World(documents["pool"])
world.converge()
print(router.pool, router.model.name, router.policy.name, router.directory)
print(agent.pool, agent.model, agent.directory, agent.callers, agent.engine_url)
print(world.reasons()["Accepted"], pool.metadata.name, pool.spec.replicas, pool.spec.model.uri)
beat, (records, check) = schema.Beat.from_hash(documents["beat"]), schema.read_entry(documents["entry"])
print(beat.epoch, beat.state, beat.load.waiting, beat.seq, beat.count, beat.digest, beat.engine)
seq, held = schema.unpack_bucket(documents["bucket"])
print(schema.unpack_records(records), check, seq, schema.unpack_records(held))
"""


def test_previous_release_and_this_version_read_each_others_documents(tmp_path: Path) -> None:
    origin, tag, old = _ROOT, _previous(_ROOT), tmp_path / "old"
    if tag is None:
        released = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (_ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        assert set(released) <= {_PRESENT}, "the changelog has releases whose tags are missing here: git fetch --tags"
        origin = tmp_path / "stands-for-it"
        _ran("git", "clone", "-q", "--shared", str(_ROOT), str(origin))
        _ran("git", "-C", str(origin), "tag", "v0.0.9")
        tag = _previous(origin)
        assert tag == "v0.0.9"
    _ran("git", "-c", "advice.detachedHead=false", "clone", "-q", "--shared", "-b", tag, str(origin), str(old))
    for writer in (_ROOT, old):
        documents = _by(writer, _WRITE)
        assert _by(old, _READ, documents) == _by(_ROOT, _READ, documents), (
            f"{tag} and this version read differently what {writer} writes"
        )


def _previous(repository: Path) -> str | None:
    """The newest release up to the present version, other than the checked-out commit."""
    if not (repository / ".git").exists():
        missing("a checkout with its tags", "git clone, rather than an archive of the tree")
    own = _ran("git", "-C", str(repository), "tag", "--points-at", "HEAD", f"v{_PRESENT}").split()
    tags = set(_ran("git", "-C", str(repository), "tag").split()) - {*own}
    found = [tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag) and _order(tag) <= _order(_PRESENT)]
    return max(found, key=_order, default=None)


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _by(tree: Path, script: str, stdin: str = "") -> str:
    """The output of a script that runs with the packages of that tree."""
    path = os.pathsep.join(str(tree / name) for name in ("core", "router", "engine", "operator", "tests"))
    return _ran(sys.executable, "-c", _BOTH + script, str(tree), stdin=stdin, PYTHONPATH=path)


def _ran(*command: str, stdin: str = "", **more: str) -> str:
    environment = {**os.environ, **more}
    ran = subprocess.run(
        command, input=stdin, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, f"{command[0]}: {ran.stderr}"
    return ran.stdout
