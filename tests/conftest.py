"""What holds for all tests: a busy machine is no failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# An example may take as long as the machine's other work makes it. All else stays as it is (in CI: derandomized).
settings.register_profile(
    "plumage",
    settings(),
    deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("plumage")
