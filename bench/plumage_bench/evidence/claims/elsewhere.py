"""Claims that can not be measured here, and measurements that leave no file."""

from __future__ import annotations

from plumage_bench.evidence.claim import Claim

__all__ = ["NOT_HERE", "NOT_KEPT"]

NOT_HERE = (
    Claim("FEATHER on an L40 with Llama 3 8B: experiments 1 to 9 of its chapter 5", "", None, paper="FEATHER ch. 5"),
    Claim("HotPrefix: scaling by data and tensor parallelism", "", None, paper="HotPrefix §5"),
)  # fmt: skip

NOT_KEPT = (
    ("plumage --help", "CPU seconds of the help"),
    ("make demo", "a fresh clone to four engines, a directory and a router"),
    ("bash .ci/run", "set-up, lint and all tests"),
    ("PLUMAGE_RLS_UPDATES=10000000 pytest tests/unit/routing/test_regression.py -k overflows", "10⁷ updates"),
    ("plumage bench operator-scale --quick", "100 pools of 10 pods"),
    ("plumage bench scale requests=300000", "10,000 requests for each of 30 replicas"),
    ("pytest -s tests/vllm/fleet/test_two_engines_behind_a_router.py", "two real engines, a kill, a join, a drain"),
    ("make check-vllm VERSION=0.33.0", "whether another vLLM has what the plugin hooks"),
    ("pytest tests/e2e_cluster", "install, wake, size, upgrade, roll back, delete, uninstall on a cluster"),
    ("make e2e-vllm", "one pod of real vLLM on a cluster"),
    ("pytest tests/integration/operator/test_crashes.py", "an operator that dies after each action of a plan"),
    ("pytest tests/contract/crds/test_rules.py", "the CEL rules on a real API server"),
)
"""A command, and what it shows."""
