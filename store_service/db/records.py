"""Rows that become values of the model."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


def value_of(kind: type[Kind], row: Mapping[str, Any], **converted: object) -> Kind:
    """The columns named as the fields of a dataclass, but for those that are handed over converted."""
    return kind(**{field.name: row[field.name] for field in fields(kind)} | converted)
