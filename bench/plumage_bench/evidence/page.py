"""The page docs/evidence.md, from claims and kept runs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from plumage_bench.evidence.claim import Claim, Verdict, judge
from plumage_bench.evidence.figures import Measured, Record
from plumage_bench.evidence.kept import command_of, commit_of, has_bootstrap, is_old
from plumage_bench.pairs import LEAST_PAIRS

__all__ = ["page"]

Sections = Sequence[tuple[str, Sequence[Claim]]]

_INTRODUCTION = """# Evidence

`scripts/make_evidence.py` writes this page from the claims in `bench/plumage_bench/evidence/claims` and the runs in
[evidence/](evidence/); `make lint` fails when they disagree. Do not edit it. Verdicts are computed from the numbers:

- *reproduced* and *refuted* speak of a paper's figure, *passed* and *missed* of a target of ours. A paper's figure is
  refuted where the run's figure and its whole interval miss it, and missed where the interval reaches it.
- *not measured yet*: no kept run has the figure; its command is named. *no target*: shown, not judged.
- *old run*: shown, not judged. The run names no commit, or measured one before 2026-11-24. Until then settings of ours
  did not come from a manifest: FEATHER's bandit explored with 0.02 instead of 0.05, for example. Code differs too.

An interval is 95 % where five pairs or more stand behind it; fewer have a range. Intervals that a run of 2026-11-25
or older recorded are a *bootstrap*'s: too narrow for 95 %, by a factor of 1.6 at five pairs, 1.1 at twenty. With fewer
pairs such a run has none. Intervals that this page computes from kept pairs are Student's at any date.

Devices of routing and of the simulator are modelled, and vLLM runs generated models on a CPU: only "Real vLLM on a GPU"
has gains on a real GPU. In `vllm-feather-gpu` the cell without sharing is not valid, as the policy before had cached
the prompts; no claim uses it, and `vllm-feather-gpu-unshared` repeats it. Judged runs too may be older than the code:
the commit says which code they measured. A plus after a commit: files were changed since."""
_HEAD = ("| claim | figure | interval | target | verdict | command | commit, date |", "|---|---|---|---|---|---|---|")
_RUNS = ("| run | seed | extent | machine | versions | seconds |", "|---|---|---|---|---|---|")


def page(sections: Sections, not_kept: Sequence[tuple[str, str]], runs: Mapping[str, Record]) -> str:
    """The whole page. A claim whose run or figure is missing is "not measured yet"."""
    lines = [_INTRODUCTION, "", *_summary(sections, runs)]
    for title, claims in sections:
        lines += ["", f"## {title}", "", *_HEAD, *(_row(claim, runs.get(claim.file, {})) for claim in claims)]
    lines += ["", "## Not kept", "", "These leave no file, so no figure of theirs is claimed. Run the command.", ""]
    lines += ["| command | what it shows |", "|---|---|", *(f"| {_code(run)} | {what} |" for run, what in not_kept)]
    lines += ["", "## Runs", "", *_RUNS, *(_run(name, run) for name, run in runs.items())]
    return "\n".join(lines) + "\n"


def _summary(sections: Sections, runs: Mapping[str, Record]) -> Iterator[str]:
    claims = [claim for _, section in sections for claim in section]
    count = Counter(_verdict(claim, runs.get(claim.file, {})) for claim in claims)
    yield "| verdict | claims |"
    yield "|---|---|"
    yield from (f"| {verdict} | {count[verdict]} |" for verdict in Verdict if count[verdict])


def _read(claim: Claim, run: Record) -> Measured | None:
    return None if claim.figure is None else claim.figure.read(run)


def _verdict(claim: Claim, run: Record) -> Verdict:
    return judge(claim, _read(claim, run), is_old(run))


def _row(claim: Claim, run: Record) -> str:
    found = _read(claim, run)
    verdict = _verdict(claim, run)
    shown = verdict if verdict in (Verdict.PASSED, Verdict.REPRODUCED, Verdict.NO_TARGET) else f"**{verdict}**"
    target = f"{claim.target} ({claim.paper})" if claim.paper else str(claim.target)
    command = (command_of(run) if found else "") or claim.command or command_of(run)
    commit = commit_of(run) if found is not None else "–"
    cells = (
        claim.text,
        _figure(found),
        _interval(found, has_bootstrap(run)),
        target,
        shown,
        _code(command) if command else "–",
        commit,
    )
    return f"| {' | '.join(cells)} |"


def _figure(found: Measured | None) -> str:
    return "–" if found is None else _number(found.value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else f"{value:.4g}"


def _interval(found: Measured | None, bootstrap: bool) -> str:
    if found is not None and found.pairs == 1:
        return "one pair"
    bootstrap = bootstrap and found is not None and not found.again
    if bootstrap and found is not None and found.pairs is not None and found.pairs < LEAST_PAIRS:
        return f"– ({found.pairs} pairs)"
    if found is None or (found.low is None and found.high is None):
        return "–"
    if found.high is None:
        ends = f"from {found.low:.4g}"
    else:
        ends = f"to {found.high:.4g}" if found.low is None else f"{found.low:.4g} to {found.high:.4g}"
    pairs = "pairs not recorded" if found.pairs is None else f"{found.pairs} pairs"
    if bootstrap:
        return f"{ends} (bootstrap, {pairs})"
    if found.pairs is None:
        return f"{ends} ({pairs})"
    return f"{ends} ({'95 %, ' if found.pairs >= LEAST_PAIRS else 'range of '}{pairs})"


def _code(command: str) -> str:
    return f"`{command.replace('|', chr(92) + '|')}`"


def _run(name: str, run: Record) -> str:
    machine, versions = run.get("machine", {}), run.get("versions", {})
    extent = ("quick" if run["quick"] else "full") if "quick" in run else "–"
    where = [machine.get("processor"), f"{machine['cpus']} CPUs" if machine else None, machine.get("device")]
    cells = (
        f"[{name}](evidence/{name}.json)",
        str(run.get("seed", "–")),
        extent,
        ", ".join(part for part in where if part) or "–",
        ", ".join(f"{program} {version}" for program, version in versions.items()) or "–",
        _number(run["seconds"]) if "seconds" in run else "–",
    )
    return f"| {' | '.join(cells)} |"
