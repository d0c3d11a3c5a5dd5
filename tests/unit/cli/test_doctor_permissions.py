"""Which permissions of an operator doctor asks an API server about."""

from __future__ import annotations

from typing import Any

from plumage_cli.doctor.finding import Verdict
from plumage_cli.doctor.permissions import check_permissions

OPERATOR = {
    "metadata": {"namespace": "plumage-system"},
    "spec": {"template": {"spec": {"serviceAccountName": "plumage-operator"}}},
}
OWN, PUBLISHED = "inference.plumage.dev", "inference.networking.k8s.io"


class Server:
    """asked: group and resource of each review. denied: the ones that are not allowed."""

    def __init__(self, *denied: tuple[str, str]) -> None:
        self.denied = denied
        self.asked: set[tuple[str, str]] = set()

    def post(self, _path: str, review: dict[str, Any]) -> dict[str, Any]:
        attributes = review["spec"]["resourceAttributes"]
        about = (attributes["group"], attributes["resource"])
        self.asked.add(about)
        return {"status": {"allowed": about not in self.denied}}


def test_optional_kinds_are_left_to_the_pools_that_ask_for_them() -> None:
    server = Server((PUBLISHED, "inferencepools"))
    (finding,) = check_permissions(server, OPERATOR, [], "plumage-router")  # type: ignore[arg-type]
    assert finding.verdict is Verdict.GOOD
    assert (OWN, "inferencepools") in server.asked
    assert not {(PUBLISHED, "inferencepools"), ("networking.k8s.io", "ingresses")} & server.asked


def test_missing_right_to_pools_is_reported_although_an_optional_kind_has_their_name() -> None:
    (finding,) = check_permissions(Server((OWN, "inferencepools")), OPERATOR, [], "plumage-router")  # type: ignore[arg-type]
    assert finding.verdict is Verdict.BAD
    assert "may not list inferencepools" in finding.what
