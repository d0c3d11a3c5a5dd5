"""`scripts/install.py`: uv installs with pip's settings, and pip itself where there is no uv."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "install.py"


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_environment_wins_over_the_files(install: ModuleType) -> None:
    lines = [
        ":env:.index-url='https://env.example/simple'",
        "global.index-url='https://global.example/simple'",
        "global.extra-index-url='\\nhttps://one.example\\nhttps://two.example'",
        "install.no-index='true'",
        "global.timeout=60",  # pip prints values in quotes
        "no setting",
    ]
    assert install.settings(lines) == {
        "index-url": "https://env.example/simple",
        "extra-index-url": "\nhttps://one.example\nhttps://two.example",
        "no-index": "true",
    }


def test_each_setting_has_its_variable(install: ModuleType, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    found = install.environment(
        {
            "index-url": "https://a.example",
            "extra-index-url": "\nhttps://b.example\nhttps://c.example",
            "find-links": f"{wheels} {tmp_path / 'missing'} https://d.example/wheels",
            "trusted-host": "b.example",
            "cert": "/ca.pem",
            "default-timeout": "180",
            "proxy": "http://proxy.example:3128",
        }
    )
    assert found == {
        "UV_DEFAULT_INDEX": "https://a.example",
        "UV_INDEX": "https://b.example https://c.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{wheels},https://d.example/wheels",
        "UV_INSECURE_HOST": "b.example",
        "UV_HTTP_TIMEOUT": "180",
        "HTTP_PROXY": "http://proxy.example:3128",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/ca.pem",
    }
    assert install.environment({}) == {"UV_SYSTEM_CERTS": "true"}


def test_index_of_the_command_wins(install: ModuleType) -> None:
    mirror = {"index-url": "https://mirror.example"}
    assert "UV_DEFAULT_INDEX" in install.environment(mirror)
    assert "UV_DEFAULT_INDEX" not in install.environment(mirror, ["--index-url", "https://wheels.example", "torch"])


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one package, whose module is `tiny_package`."""
    folder, info = tmp_path / "wheels", "tiny_package-1.0.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_package.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def test_package_comes_from_the_folder_that_pip_knows(tmp_path: Path, wheels: Path) -> None:
    """There is no index, so pip can't get uv where it is missing."""
    venv, config = tmp_path / "venv", tmp_path / "pip.conf"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    pip = importlib.util.find_spec("pip")
    assert pip is not None, "run make setup"
    assert pip.origin is not None
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.origin).parent)  # to install it takes three seconds of CPU
    config.write_text(f"[global]\nno-index = true\nfind-links = {wheels}\n")
    uv = Path(sys.executable).with_name("uv")
    assert uv.exists(), "run make setup"
    for with_uv in (False, True):
        if with_uv:
            shutil.copy(uv, venv / "bin" / "uv")
        done = subprocess.run(
            [str(venv / "bin" / "python"), str(SCRIPT), "tiny-package"],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("pip does the work" in done.stderr) != with_uv
        (installed,) = venv.glob("lib/python*/site-packages/tiny_package.py")
        for one in (installed, *installed.parent.glob("tiny_package-*/*")):
            one.unlink()
        shutil.rmtree(next(iter(installed.parent.glob("tiny_package-*"))))


def test_missing_package_fails_with_its_name(tmp_path: Path, wheels: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--dry-run", "no-such-package"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "no-such-package" in done.stderr
