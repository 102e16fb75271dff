"""Whose access tokens are believed, and for which tenants: the issuer file, `issuers.schema.json` beside this file.

Source: contract, section 7; security checklist A1, A5, A15, A16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final
from urllib.parse import urlsplit

from mcp_bridge.access.config_files import ConfigFileError, as_list, as_mapping, check_shape, read_document, read_schema
from mcp_bridge.access.hosts import is_loopback
from mcp_bridge.access.yaml_lines import Document, Path, Problem
from mcp_bridge.wire.challenges import is_scope

DEVELOPMENT_ISSUER: Final = "https://development.tenure.invalid"
"""The issuer of the tokens of `tenure-bridge dev-token`. It is believed on loopback only."""
ALGORITHMS: Final = ("RS256", "ES256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """One authorization server."""

    issuer: str
    """What its tokens have as `iss`, to the letter."""
    jwks: str
    """Where its keys are: a URL, or the path of a file."""
    ca: str | None
    """A file of the certificates by which its keys' server is known; None means the system's."""
    algorithms: tuple[str, ...]
    tenant: str | None
    """The tenant of all its callers; None means that a claim names it."""
    tenants: frozenset[str] | None
    """The tenants for which it speaks; None means every."""
    tenant_claim: str
    scopes_claim: str
    groups_claim: str

    @property
    def reads_url(self) -> bool:
        """Whether its keys come over the network."""
        return "://" in self.jwks


@dataclass(frozen=True, slots=True)
class Issuers:
    """Everybody who is believed."""

    all: tuple[Issuer, ...]
    scopes: tuple[str, ...]
    """What a client should ask for before it is known what it wants to do."""


def load_issuers(path: str, *, on_loopback: bool) -> Issuers:
    """The issuers in a file. Away from loopback, keys are read over HTTPS or from files, and no development tokens are
    believed. Raises ConfigFileError, or OSError when there is no such file."""
    document = read_document(path)
    if document.value is not None or not document.problems:
        check_shape(document, issuers_schema())
        _Check(document, on_loopback=on_loopback).check()
    if document.problems:
        raise ConfigFileError(path, document.problems)
    folder = FilePath(path).parent
    value = document.value
    return Issuers(tuple(_issuer(one, folder) for one in value["issuers"]), tuple(value.get("scopes", ())))


def issuers_schema() -> dict[str, Any]:
    """The JSON Schema of issuer files."""
    return read_schema("issuers.schema.json")


class _Check:
    """What the schema cannot say."""

    def __init__(self, document: Document, *, on_loopback: bool) -> None:
        self._document = document
        self._on_loopback = on_loopback

    def check(self) -> None:
        root = as_mapping(self._document.value)
        for index, scope in enumerate(as_list(root.get("scopes"))):
            if isinstance(scope, str) and not is_scope(scope):
                self._problem(("scopes", index), "must be a scope that a resource may ask for")
        issuers = [as_mapping(one) for one in as_list(root.get("issuers"))]
        for index, one in enumerate(issuers):
            path: Path = ("issuers", index)
            if [other.get("issuer") for other in issuers].count(one.get("issuer")) > 1:
                self._problem((*path, "issuer"), "the issuer is there twice")
            if "tenant" in one and ("tenants" in one or "tenant_claim" in one):
                self._problem((*path, "tenant"), "is said for all callers; then no claim names it")
            if len(issuers) > 1 and "tenant" not in one and "tenants" not in one:
                self._problem(path, "must have `tenant` or `tenants`: of several issuers, none speaks for every tenant")
            self._check_trust(one, path)

    def _check_trust(self, one: Mapping[str, Any], path: Path) -> None:
        issuer, jwks = one.get("issuer"), one.get("jwks")
        if isinstance(issuer, str) and not self._is_trusted_url(issuer):
            self._problem((*path, "issuer"), "must be an https URL")
        if issuer == DEVELOPMENT_ISSUER and not self._on_loopback:
            self._problem((*path, "issuer"), "issues development tokens, which are believed on loopback only")
        if isinstance(jwks, str) and "://" in jwks and not self._is_trusted_url(jwks):
            self._problem((*path, "jwks"), "must be an https URL")
        if "ca" in one and not str(jwks).startswith("https://"):
            self._problem((*path, "ca"), "is for keys that are read over HTTPS")

    def _is_trusted_url(self, url: str) -> bool:
        """Whether it is https; on loopback, plain http to loopback is as good."""
        parts = urlsplit(url)
        if not parts.hostname or parts.username is not None:
            return False
        return parts.scheme == "https" or (parts.scheme == "http" and self._on_loopback and is_loopback(parts.hostname))

    def _problem(self, path: Path, reason: str) -> None:
        self._document.problems.append(Problem(self._document.line(path), path, reason))


def _issuer(one: Mapping[str, Any], folder: FilePath) -> Issuer:
    jwks: str = one["jwks"]
    return Issuer(
        issuer=one["issuer"],
        jwks=jwks if "://" in jwks else str(folder / jwks),
        ca=str(folder / one["ca"]) if "ca" in one else None,
        algorithms=tuple(one.get("algorithms", ALGORITHMS)),
        tenant=one.get("tenant"),
        tenants=frozenset(one["tenants"]) if "tenants" in one else None,
        tenant_claim=one.get("tenant_claim", "tenant"),
        scopes_claim=one.get("scopes_claim", "scope"),
        groups_claim=one.get("groups_claim", "groups"),
    )
