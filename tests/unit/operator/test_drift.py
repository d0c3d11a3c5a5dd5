"""What counts as changed by another client, and what the API server may add."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_operator.controller.drift import additions, drift

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_applied_object_is_no_drift(thing: dict[str, Any]) -> None:
    assert drift(thing, copy.deepcopy(thing)) == []


@pytest.mark.parametrize(
    ("wanted", "live", "paths"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"]),
        ({"a": {"b": 1}}, {}, ["a"]),
        ({"a": {}}, {}, []),
        ({"a": []}, {"a": None}, []),
        ({"args": ["x", "y"]}, {"args": ["y", "x"]}, ["args[0]", "args[1]"]),
        ({"args": ["x"]}, {"args": ["x", "y"]}, ["args"]),
        ({"limits": {"memory": "1024Mi", "cpu": "1000m"}}, {"limits": {"memory": "1Gi", "cpu": "1"}}, []),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "2Gi"}}, ["limits.memory"]),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}, {"name": "A", "value": "1"}]}, []),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}, ["env[A].value"]),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": []}, ["env[A]"]),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 1, "protocol": "TCP"}]}, []),
        ({"selector": {"app": "a"}}, {"selector": {"app": "a", "b": "c"}}, ["selector.b"]),
        ({"labels": {"app": "a"}}, {"labels": {"app": "a", "b": "c"}}, []),
        ({"selector": {"matchLabels": {}}}, {"selector": {}}, []),
        ({"subjects": [{"name": "a"}]}, {"subjects": [{"name": "a"}, {"name": "b"}]}, ["subjects"]),
        ({"ingress": [{"ports": [{"port": 1}]}]}, {"ingress": [{"ports": [{"port": 1, "endPort": 9}]}]},
         ["ingress[0].ports[0].endPort"]),
        ({"backendRefs": [{"name": "a"}]}, {"backendRefs": [{"name": "a"}, {"name": "b"}]}, ["backendRefs"]),
        ({"backendRefs": [{"name": "a"}]}, {"backendRefs": [{"name": "a", "weight": 1}]}, []),
    ],
)  # fmt: skip
def test_drift(wanted: dict[str, Any], live: dict[str, Any], paths: list[str]) -> None:
    assert drift(wanted, live) == paths


def test_additions_are_keys_of_fields_that_are_compared_as_a_whole() -> None:
    spec = {"selector": {"matchLabels": {"a": "1"}}, "ports": [{"n": 1}]}
    wanted: dict[str, Any] = {"metadata": {"labels": {"a": "1"}}, "spec": spec}
    live = copy.deepcopy(wanted)
    assert additions(wanted, live) == []
    live["metadata"]["labels"]["theirs"] = "1"
    live["spec"]["appProtocol"] = "http"
    live["spec"]["ports"].append({"n": 2})
    assert additions(wanted, live) == [], "others may add labels, definitions add defaults, and lists are replaced"
    live["spec"]["selector"]["matchLabels"] |= {"example.com/a~b": "", "z": ""}
    live["spec"]["selector"]["matchExpressions"] = []
    assert additions(wanted, live) == [
        "/spec/selector/matchExpressions",
        "/spec/selector/matchLabels/example.com~1a~0b",
        "/spec/selector/matchLabels/z",
    ]
