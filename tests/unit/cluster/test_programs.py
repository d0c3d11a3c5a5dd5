"""Where the cluster's programs come from."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
import yaml
from cluster import build, envtest, programs
from cluster.cache import VERSION, bin_folder
from cluster.errors import NotHereError

INDEX = {
    "releases": {
        f"v{version}": {
            f"envtest-v{version}-{platform}.tar.gz": {"selfLink": f"https://x/{version}/{platform}", "hash": version}
            for platform in ("linux-amd64", "darwin-arm64")
        }
        for version in ("1.35.9", "1.36.0", "1.36.2", "1.36.10", "1.37.0")
    }
}


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no assets."""
    monkeypatch.setenv("PLUMAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def test_assets_win_over_the_cache(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = programs.API[0]
    cached = program(bin_folder(), "etcd")
    assert programs.found(etcd) == cached
    assets = program(empty / "assets", "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(empty / "assets"))
    assert programs.found(etcd) == assets


def test_programs_missing_in_the_assets_come_from_the_cache(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(empty / "assets", "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(empty / "assets"))
    cached = program(bin_folder(), "kube-controller-manager")
    assert programs.found(programs.API[2]) == cached


def test_file_that_cannot_run_is_no_program(empty: Path) -> None:
    program(bin_folder(), "etcd").chmod(0o644)
    assert programs.found(programs.API[0]) is None


@pytest.mark.parametrize(("which", "message"), [("api", "SET=api"), ("nodes", "SET=nodes")])
def test_missing_programs_are_reported_with_the_command(empty: Path, which: str, message: str) -> None:
    with pytest.raises(NotHereError, match=f"make cluster-programs {message}"):
        programs.required(programs.SETS[which])


def test_existing_programs_are_not_built_again(empty: Path) -> None:
    places = {each.name: program(bin_folder(), each.name) for each in programs.API}
    assert programs.ensure(programs.API) == places


def test_cache_is_named_after_the_kubernetes_version() -> None:
    assert VERSION.startswith("1.")
    assert bin_folder().parent.name == VERSION


def test_last_published_patch_is_chosen() -> None:
    assert envtest.choose(INDEX, "1.36.3-abc", "linux-amd64") == ("https://x/1.36.10/linux-amd64", "1.36.10")


@pytest.mark.parametrize(("version", "platform"), [("1.34.1", "linux-amd64"), ("1.36.3", "linux-riscv")])
def test_missing_publication_is_reported(version: str, platform: str) -> None:
    with pytest.raises(LookupError):
        envtest.choose(INDEX, version, platform)


def archive(**files: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for name, body in files.items():
            member = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            member.size = len(body)
            packed.addfile(member, io.BytesIO(body))
    return content.getvalue()


def test_archive_is_unpacked_as_programs(tmp_path: Path) -> None:
    packed = archive(etcd=b"one", kubectl=b"two", readme=b"three")
    envtest.unpack(packed, hashlib.sha512(packed).hexdigest(), ["etcd", "kubectl"], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"etcd": b"one", "kubectl": b"two"}
    assert all(path.stat().st_mode & 0o111 for path in tmp_path.iterdir())


def test_changed_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SHA-512"):
        envtest.unpack(archive(etcd=b"one"), "0" * 128, ["etcd"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_published_programs_are_stored_in_the_cache(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = archive(etcd=b"one", kubectl=b"two")
    (empty / "archive").write_bytes(packed)
    entry = {"selfLink": (empty / "archive").as_uri(), "hash": hashlib.sha512(packed).hexdigest()}
    release = f"v{VERSION.split('-')[0]}"
    index = {"releases": {release: {f"envtest-{release}-here.tar.gz": entry}}}
    (empty / "index").write_text(yaml.safe_dump(index))
    monkeypatch.setenv("PLUMAGE_ENVTEST_INDEX", (empty / "index").as_uri())
    monkeypatch.setattr(envtest, "_platform", lambda: "here")
    envtest.download(["etcd", "kube-controller-manager"])
    assert [path.name for path in bin_folder().iterdir()] == ["etcd"]


def test_unreachable_index_leads_to_a_build(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLUMAGE_ENVTEST_INDEX", (empty / "none").as_uri())
    envtest.download(["etcd"])
    assert "building etcd" in capsys.readouterr().err


def test_long_build_shows_progress(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Go writes nothing while it compiles for minutes."""
    go = program(empty / "go", "go")
    go.write_text('#!/bin/sh\nsleep 1\nwhile [ "$1" != -o ]; do shift; done\necho made >"$2"\n')
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setattr(build, "_SHOWN_EVERY_S", 0.1)
    build.build("etcd", {"etcd": "."})
    assert (bin_folder() / "etcd").read_text() == "made\n"
    printed = capsys.readouterr().err
    assert "cluster: building etcd" in printed
    assert "cluster: still building etcd" in printed


def test_build_beyond_its_timeout_is_ended(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = program(empty / "go", "go")
    go.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setattr(build, "_LIMIT_S", 0.3)
    with pytest.raises(NotHereError, match="call it again"):
        build.build("etcd", {"etcd": "."})
