"""Who the store's callers are: the policy file that binds identities to roles, tenants and workflows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

EVERY: Final = "*"


class PolicyError(Exception):
    """The policy file cannot be used. The message says where and why."""


class Role(StrEnum):
    """What a caller is to the store. `rules.py` says which methods each may call."""

    BRIDGE = "bridge"
    WORKER = "worker"
    OPERATOR = "operator"
    AUDITOR = "auditor"


class Permission(StrEnum):
    """What nobody may do whom the policy file does not name for it. `rules.py` says which method needs which."""

    PLACE_HOLD = "place_hold"
    RELEASE_HOLD = "release_hold"
    CONFIRM_EXPORT = "confirm_export"
    PREPARE_PURGE = "prepare_purge"
    LIST_PURGES = "list_purges"
    CLAIM_PURGE = "claim_purge"
    APPROVE_PURGE = "approve_purge"
    REJECT_PURGE = "reject_purge"
    EXECUTE_PURGE = "execute_purge"
    GET_PURGE_EVIDENCE = "get_purge_evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One authenticated caller, and what it may touch. No set means all of them."""

    identity: str
    role: Role
    tenants: frozenset[str] | None = None
    workflows: frozenset[str] | None = None
    worker: str | None = None
    """The name that its `worker_id`s are, or begin with before a `-`; None where any will do."""
    most_calls: int = 1_000
    """How many of its calls may be under way at once."""
    permissions: Mapping[Permission, frozenset[str] | None] = field(default_factory=dict)
    """What it may do besides, and for which tenants; None means all that it may touch."""

    def has(self, permission: Permission, tenant_id: str) -> bool:
        """Whether it may do this for a tenant that it may touch."""
        tenants = self.permissions.get(permission, frozenset())
        return tenants is None or tenant_id in tenants


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    identity: str
    role: Role
    tenants: list[str]
    workflows: list[str] = msgspec.field(default_factory=lambda: [EVERY])
    worker: str | None = None
    most_calls: int = 1_000
    permissions: dict[Permission, list[str]] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    version: int
    callers: list[_Entry]


def read_policy(path: Path) -> Mapping[str, Caller]:
    """The callers by identity. Raises PolicyError."""
    try:
        file = msgspec.yaml.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise PolicyError(f"{path}: {error}") from None
    if file.version != 1:
        raise PolicyError(f"{path}: version must be 1")
    callers: dict[str, Caller] = {}
    for number, entry in enumerate(file.callers):
        place = f"{path}: callers[{number}]"
        if entry.identity in callers:
            raise PolicyError(f"{place}.identity: {entry.identity} stands twice")
        callers[entry.identity] = _to_caller(entry, place)
    _check_workers([caller for caller in callers.values() if caller.worker is not None], path)
    return callers


def _to_caller(entry: _Entry, place: str) -> Caller:
    if not entry.identity:
        raise PolicyError(f"{place}.identity: is empty")
    if (entry.role is Role.WORKER) != (entry.worker is not None):
        raise PolicyError(f"{place}.worker: is the name of a worker; a worker must have one, and nobody else")
    if entry.role is not Role.WORKER and entry.workflows != [EVERY]:
        raise PolicyError(f"{place}.workflows: are for workers")
    if entry.role in (Role.WORKER, Role.OPERATOR) and len(entry.tenants) > 1_000:
        raise PolicyError(f"{place}.tenants: at most 1,000 can be asked for at once; make it several callers, or '*'")
    if entry.role not in (Role.OPERATOR, Role.AUDITOR) and entry.permissions:
        raise PolicyError(f"{place}.permissions: are for operators and auditors")
    if not 1 <= entry.most_calls <= 100_000:
        raise PolicyError(f"{place}.most_calls: must be 1 to 100,000")
    return Caller(
        identity=entry.identity,
        role=entry.role,
        tenants=_names(entry.tenants, f"{place}.tenants"),
        workflows=_names(entry.workflows, f"{place}.workflows"),
        worker=entry.worker,
        most_calls=entry.most_calls,
        permissions={name: _names(tenants, f"{place}.permissions.{name}") for name, tenants in entry.permissions.items()},
    )


def _names(names: list[str], place: str) -> frozenset[str] | None:
    if not names:
        raise PolicyError(f"{place}: names nothing; '*' means all")
    if EVERY in names:
        if len(names) > 1:
            raise PolicyError(f"{place}: '*' stands alone")
        return None
    return frozenset(names)


def _check_workers(workers: list[Caller], path: Path) -> None:
    """No worker's ids are another's: `a` owns `a-b-1` too, so there can be no worker `a-b` beside it."""
    for one in workers:
        for other in workers:
            if one is not other and f"{other.worker}-".startswith(f"{one.worker}-"):
                raise PolicyError(
                    f"{path}: the workers {one.worker} of {one.identity} and {other.worker} of {other.identity} could take "
                    "each other's ids; give them names of which none continues another after a '-'"
                )
