"""Uninstalling Plumage leaves only the definitions that the chart keeps. This module runs last, since it removes the
install that all modules share."""

from __future__ import annotations

import pytest
from support.kube_access import Access
from support.kube_install import install, listing, made_by_users, uninstall, until_gone

# For each definition the API server also registers the group and version.
_KEPT = frozenset(
    {
        "CustomResourceDefinition apiextensions.k8s.io/v1 <none> inferencepools.inference.plumage.dev",
        "CustomResourceDefinition apiextensions.k8s.io/v1 <none> inferencegateways.inference.plumage.dev",
        "APIService apiregistration.k8s.io/v1 <none> v1alpha1.inference.plumage.dev",
    }
)


@pytest.fixture(scope="module")
def removed(access: Access, before: frozenset[str], installed: None) -> None:
    """Removes pools and gateways, then the release, as the chart's page describes."""
    kinds = "inferencepools,inferencegateways"
    access.kubectl("delete", kinds, "--all", "--all-namespaces", "--timeout=120s")
    uninstall(access)


@pytest.mark.usefixtures("removed")
def test_uninstall_leaves_only_definitions(access: Access, before: frozenset[str]) -> None:
    def left() -> frozenset[str]:
        namespaces = access.kubectl("get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}").split()
        return listing(access) - before - _KEPT - made_by_users(namespaces)

    until_gone(left)
    assert listing(access) >= _KEPT


@pytest.mark.usefixtures("removed")
def test_next_install_adopts_kept_definitions(access: Access) -> None:
    install(access)
    assert access.kubectl("get", "inferencepools", "--all-namespaces", "-o", "name") == ""
    uninstall(access)
    assert listing(access) >= _KEPT
