"""Check the subjects and bodies of commits: `python scripts/check_commits.py`, which `make lint` runs.

A subject is an imperative of at most 72 characters that begins with a capital letter and has no full stop at its end. A
body gives the reason. The last `COMMITS` commits after `BASE` are checked: older ones were written before the rule.
Those after `WORDS_BASE` also use none of the words that `check_words.py` refuses; names in backquotes are left out.
Outside of git, in a shallow clone, and in a history without `BASE` there is nothing to check, and a notice says so.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from check_words import refused_words, split

ROOT = Path(__file__).resolve().parent.parent
BASE = "7e5df0e344c6cf5340183ab2a98e9e62754217c7"
WORDS_BASE = "c01a960bd182f4028ab5ff35466e99e93fae8c47"  # the list of words was made for texts of the tree first
COMMITS = 30
LONGEST = 72  # characters of a subject
IMPERATIVES = frozenset(("Bring", "Embed", "Ping", "Shed", "String", "Swing"))
"""Imperatives that end as a past tense or a gerund does."""
PAST = frozenset(
    (
        "Began", "Broke", "Brought", "Built", "Chose", "Did", "Drew", "Found", "Gave", "Got", "Held", "Kept", "Left",
        "Lost", "Made", "Meant", "Rewrote", "Sent", "Spoke", "Stood", "Thought", "Threw", "Took", "Was", "Were", "Went",
        "Wrote",
    )
)  # fmt: skip
QUOTED = re.compile(r"`[^`]*`")
NOT_IMPERATIVE = re.compile(r"[A-Z][a-z]*(?:[^e]ed|ing)")  # `Feed` and `Exceed` are imperatives


def problems(subject: str, body: str) -> list[str]:
    """What is wrong with one commit's message; empty for a valid one."""
    first = re.split(r"[^A-Za-z]", subject, maxsplit=1)[0]
    found = []
    if len(subject) > LONGEST:
        found.append(f"has {len(subject)} characters, at most {LONGEST} are allowed")
    if not subject[:1].isupper():
        found.append("does not begin with a capital letter")
    if subject.endswith("."):
        found.append("ends with a full stop")
    if first in PAST or (NOT_IMPERATIVE.fullmatch(first) and first not in IMPERATIVES):
        found.append(f"is not an imperative: {first!r}")
    if not body.strip():
        found.append("has no body that gives the reason")
    return found


def private_words(message: str, refused: re.Pattern[str]) -> list[str]:
    """The refused words of one commit's message. A name in backquotes may be one that the commit replaces."""
    return [f"has the private word {match[0]!r}" for match in refused.finditer(split(QUOTED.sub("", message)))]


def findings(root: Path = ROOT, base: str = BASE, words_base: str = WORDS_BASE) -> list[str]:
    """`commit subject: problem` for the checked commits, newest first.

    base: a commit; itself and its ancestors are not checked. words_base: the same for private words.
    LookupError: there is no history to check, and why.
    """
    if _git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
        raise LookupError("this clone is shallow")
    for known in (base, words_base):
        try:
            _git(root, "merge-base", "--is-ancestor", known, "HEAD")
        except LookupError:
            raise LookupError(f"commit {known[:8]} is not in this history") from None
    log = _git(root, "log", f"-{COMMITS}", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e", f"{base}..HEAD")
    commits = [entry.strip("\n").split("\x1f") for entry in log.split("\x1e") if entry.strip("\n")]
    newer = set(_git(root, "log", "--no-merges", "--format=%h", f"{words_base}..HEAD").split())
    refused = refused_words()
    return [
        f"{commit} {subject!r}: {problem}"
        for commit, subject, body in commits
        for problem in (
            *problems(subject, body),
            *(private_words(f"{subject}\n\n{body}", refused) if commit in newer else ()),
        )
    ]


def _git(root: Path, *arguments: str) -> str:
    """The output of a git command. LookupError if git is missing or refuses, as outside of a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        raise LookupError(f"git does not run: {error}") from None
    if done.returncode:
        raise LookupError(done.stderr.strip().partition("\n")[0] or f"git {arguments[0]} failed")
    return done.stdout


if __name__ == "__main__":
    try:
        wrong = findings()
    except LookupError as reason:
        print(f"commit messages are not checked: {reason}")
        sys.exit()
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(f"{len(wrong)} problems of commit messages: see CONTRIBUTING.md, Commits")
