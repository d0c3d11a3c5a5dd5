"""A manifest may name exactly the policies that the factories can make."""

from __future__ import annotations

from typing import get_args

import pytest

from plumage import batching, eviction, routing
from plumage.api.v1alpha1.cache import EvictionSpec
from plumage.api.v1alpha1.feather import FeatherSpec
from plumage.api.v1alpha1.router import RouterSpec
from plumage.api.v1alpha1.struct import Struct

PAPER_FORMS = {"HotnessPaper", "BanditPaper", "QLearningPaper"}
"""A manifest asks for them by `form`, beside the policy."""


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        (RouterSpec, routing.POLICY_NAMES),
        (FeatherSpec, set(batching.POLICIES) - PAPER_FORMS),
        (EvictionSpec, set(eviction.POLICY_NAMES) - PAPER_FORMS),
    ],
)
def test_manifest_names_the_policies_of_the_factory(spec: type[Struct], made: tuple[str, ...] | set[str]) -> None:
    named = get_args(spec.model_fields["policy"].annotation)
    assert named
    assert set(named) == set(made)
