"""`make lint` checks the messages of new commits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
GOOD = ("Hold headers until the first body byte", "A replica may fail before it.")
Commit = Callable[[str, str], str]


@pytest.fixture
def check_commits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("check_commits", ROOT / "scripts" / "check_commits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *arguments: str) -> str:
    person = {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    alone = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env={**outer, **person, **alone},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


@pytest.fixture
def commit(repository: Path) -> Commit:
    """Commit with a subject and a body; returns the hash."""

    def make(subject: str, body: str) -> str:
        git(repository, "commit", "-q", "--allow-empty", "--cleanup=verbatim", "-m", f"{subject}\n\n{body}")
        return git(repository, "rev-parse", "HEAD")

    return make


def test_good_commits_pass(check_commits: ModuleType, repository: Path, commit: Commit) -> None:
    base = commit("older commits were Written before the rule.", "")
    commit(*GOOD)
    commit("Feed the agent's index in one call", "It was two.\n\nThey could differ.")
    assert check_commits.findings(repository, base, base) == []


@pytest.mark.parametrize(
    ("subject", "body", "problem"),
    [
        ("Hold headers " + "until the first body byte " * 3, "Why.", "at most 72 are allowed"),
        ("hold headers", "Why.", "does not begin with a capital letter"),
        ("Hold headers.", "Why.", "ends with a full stop"),
        ("Added a timeout", "Why.", "is not an imperative: 'Added'"),
        ("Adding a timeout", "Why.", "is not an imperative: 'Adding'"),
        ("Wrote a test", "Why.", "is not an imperative: 'Wrote'"),
        ("Hold headers", "", "has no body"),
    ],
)
def test_planted_commit_fails(
    check_commits: ModuleType, repository: Path, commit: Commit, subject: str, body: str, problem: str
) -> None:
    base = commit(*GOOD)
    bad = commit(subject.strip(), body)
    commit(*GOOD)
    (found,) = check_commits.findings(repository, base, base)
    assert found.startswith(git(repository, "rev-parse", "--short", bad))
    assert problem in found


@pytest.mark.parametrize(
    ("subject", "body", "word"),
    [
        ("Say what the router to{}ld the agent", "Both need it.", "to{}ld"),
        ("Rename the sce{}ne of a plan", "The name was a riddle.", "sce{}ne"),
        ("Hold headers", "Who{}ever waits needs them.", "Who{}ever"),
        ("Hold headers", "It was brou{}ght\nabout by a scale-up.", "brou{}ght\nabout"),
        ("Rename Pool_Sce{}ne", "The name was a riddle.", "Sce{}ne"),
    ],
)
def test_private_word_of_a_message_fails(
    check_commits: ModuleType, repository: Path, commit: Commit, subject: str, body: str, word: str
) -> None:
    base = commit("Hold what the router to{}ld".format(""), "It is older than the list.")
    commit(subject.format(""), body.format(""))
    (found,) = check_commits.findings(repository, base, base)
    assert f"has the private word {word.format('')!r}" in found


def test_private_words_before_the_list_and_in_backquotes_pass(
    check_commits: ModuleType, repository: Path, commit: Commit
) -> None:
    base = commit(*GOOD)
    words_base = commit("Keep what the router to{}ld".format(""), "It is older than the list.")
    commit("Name the pool's context", "`PoolSce{}ne` was a riddle.".format(""))
    assert check_commits.findings(repository, base, words_base) == []


def test_only_recent_commits_are_checked(check_commits: ModuleType, repository: Path, commit: Commit) -> None:
    base = commit(*GOOD)
    commit("hold headers", "Why.")
    check_commits.COMMITS = 2
    commit(*GOOD)
    assert len(check_commits.findings(repository, base, base)) == 1
    commit(*GOOD)
    assert check_commits.findings(repository, base, base) == []


def test_shallow_clone_is_not_checked(
    check_commits: ModuleType, repository: Path, commit: Commit, tmp_path: Path
) -> None:
    base = commit(*GOOD)
    commit("hold headers", "")
    git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), "shallow")
    with pytest.raises(LookupError, match="shallow"):
        check_commits.findings(tmp_path / "shallow", base, base)


def test_history_without_the_base_is_not_checked(check_commits: ModuleType, repository: Path, commit: Commit) -> None:
    commit("hold headers", "")
    with pytest.raises(LookupError, match="0123abcd is not in this history"):
        check_commits.findings(repository, "0123abcd" * 5)


def test_folder_outside_of_git_is_not_checked(
    check_commits: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(LookupError, match="not a git repository"):
        check_commits.findings(tmp_path)
