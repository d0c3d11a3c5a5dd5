"""Settings files of a newer operator: fields that this version does not know are ignored and logged.

A container that restarts in its old pod reads what the operator writes *now*, and the operator may be a version newer.
Files that people write are read strictly, so that a typing mistake is no silent default. An operator's files carry
`MARK`. Readers of a marked file are lenient: at the start, while a process runs, and in an environment variable.

Contract: only fields, and options of policies, may be unknown. A value that only a newer version knows is refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, ValidationInfo
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails

__all__ = ["MARK", "Settings", "marked", "refuse_newer", "unknown_places", "without_places"]

log = logging.getLogger(__name__)

MARK: Final[Mapping[str, str]] = MappingProxyType({"writtenBy": "operator"})
_LENIENT: Final = {"newer": True}
_UNKNOWN: Final = "extra_forbidden"


class Settings(BaseModel):
    """A part of a settings file, or the whole of one: the model of its writer and its reader. Names are camelCase."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    def model_post_init(self, context: object, /) -> None:
        """Counts a field that is None, as it is by default, as not set: a written file leaves it out."""
        for name in self.model_fields_set & _optional(type(self)):
            if getattr(self, name) is None:
                self.model_fields_set.discard(name)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The fields of a whole file that were ignored, dotted, in the file's spelling."""
        return self._ignored

    def written(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """The file's content: what was set, less the fields `without`. The rest is the reader's default."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=set(without))

    def given(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """The fields that were set, as the arguments of another model that has them."""
        return {name: getattr(self, name) for name in self.model_fields_set if name not in without}

    @classmethod
    def parse(cls, content: object, source: str) -> Self:
        """The settings in the content of a file or a variable. ValidationError lists every mistake. Ignored fields are
        logged in one warning, which begins with `source`."""
        if not _is_marked(content):
            return cls.model_validate(content)
        assert isinstance(content, dict)
        plain = {name: value for name, value in content.items() if name not in MARK}
        try:
            return cls.model_validate(plain, context=_LENIENT)
        except ValidationError as error:
            places = unknown_places(error)
        known = cls.model_validate(without_places(plain, places), context=_LENIENT)
        known._ignored = tuple(".".join(map(str, place)) for place in places)
        _warn(source, known._ignored)
        return known


def marked(content: Mapping[str, Any]) -> dict[str, Any]:
    """A whole file, as the operator writes it."""
    return {**content, **MARK}


def refuse_newer(options: Mapping[str, Any], known: Collection[str], info: ValidationInfo) -> None:
    """For validators of options that go to a policy's constructor: in a marked file those that it does not know are
    unknown fields. In other files the constructor's own check names them, with what there is."""
    if info.context != _LENIENT or not known:
        return
    unknown = {name: value for name, value in options.items() if name not in known}
    if unknown:
        lines = [InitErrorDetails(type=_UNKNOWN, loc=(name,), input=value) for name, value in unknown.items()]
        raise ValidationError.from_exception_data("options", lines)


def unknown_places(error: ValidationError) -> list[tuple[int | str, ...]]:
    """Where the fields are that a model does not have."""
    return [line["loc"] for line in error.errors(include_url=False) if line["type"] == _UNKNOWN]


def without_places(document: Mapping[str, Any], places: Sequence[Sequence[int | str]]) -> dict[str, Any]:
    """A copy that lacks the fields at those places."""
    whole = copy.deepcopy(dict(document))
    for *way, name in places:
        below: Any = whole
        for step in way:
            below = below[step]
        below.pop(name, None)
    return whole


def _is_marked(content: object) -> bool:
    return isinstance(content, dict) and all(content.get(name) == value for name, value in MARK.items())


@cache
def _optional(kind: type[Settings]) -> frozenset[str]:
    """The fields that are None by default."""
    return frozenset(name for name, field in kind.model_fields.items() if field.default is None)


@lru_cache(maxsize=64)  # a file that is read again says it once
def _warn(source: str, names: tuple[str, ...]) -> None:
    log.warning("%s: ignored: fields of a newer operator: %s", source, ", ".join(names))
