"""The grants of a route file: `routes.schema.json`, `grants`. Source: contract, sections 7, 10.18 and 10.19."""

from collections.abc import Mapping
from typing import Any, Final

from mcp_bridge.access.grants import Grant, Grants, implied_by

_ANYONE: Final = "anyone"
_AS_CALL: Final = ("read", "answer", "cancel")
_FOR_OTHERS: Final = ("read_any", "approve")


def read_grants(root: Mapping[str, Any], *levels: Mapping[str, Any]) -> Grants:
    """The grants of the innermost of `levels`, each of which may have `grants`, from a route file that was found right.

    What a level does not say the one before it says. Who may call may do the rest with their own tasks, unless it is said.
    """
    said: dict[str, Any] = {}
    for level in levels:
        said |= level.get("grants", {})
    alternatives = implied_by(root.get("scopes", {}))
    grants = {name: _read_grant(value, alternatives) for name, value in said.items()}
    call = grants.get("call")
    return Grants(
        call=call,
        **{name: grants.get(name, call) for name in _AS_CALL},
        **{name: grants.get(name) for name in _FOR_OTHERS},
    )


def _read_grant(value: Any, alternatives: Mapping[str, frozenset[str]]) -> Grant:
    if value == _ANYONE:
        return Grant()
    scopes = tuple(value.get("scopes", ()))
    return Grant(
        scopes=scopes,
        groups=frozenset(value.get("groups", ())),
        principals=frozenset((one["issuer"], one["subject"]) for one in value.get("principals", ())),
        implied_by=tuple(alternatives.get(scope, frozenset((scope,))) for scope in scopes),
    )
