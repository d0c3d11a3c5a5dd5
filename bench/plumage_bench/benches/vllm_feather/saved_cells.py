"""The runs of a finished cell as JSON, and back. They have each token's gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from plumage_bench.benches.vllm_feather.report import Played

__all__ = ["cell_from", "plain_cell"]


def plain_cell(runs: Mapping[str, Sequence[Played]]) -> dict[str, list[dict[str, Any]]]:
    """runs: of one cell, by the policy's label."""
    return {label: [asdict(one) for one in each] for label, each in runs.items()}


def cell_from(plain: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Played]]:
    return {label: [_played(one) for one in each] for label, each in plain.items()}


def _played(found: Mapping[str, Any]) -> Played:
    return Played(**{**found, "waits": tuple(found["waits"]), "gaps": tuple(found["gaps"])})
