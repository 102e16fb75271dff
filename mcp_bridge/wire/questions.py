"""Questions to a client: what each takes of it, and how they are shown. Source: contract, sections 10.9 and 10.12."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import msgspec

ELICITATION: Final = "elicitation/create"
SAMPLING: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"
APPROVAL: Final = "dev.tenure/approval"
"""The member of a form's `_meta` that says it is an approval; the README documents it."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question that is open."""

    key: str
    method: str
    params_json: bytes
    """The parameters, exactly as they were asked; empty for none."""

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; none where they are no object."""
        params = msgspec.json.decode(self.params_json) if self.params_json else {}
        return params if isinstance(params, dict) else {}

    @property
    def is_approval(self) -> bool:
        """Whether it is a form that is marked as an approval. Source: contract, section 10.19."""
        if self.method != ELICITATION or APPROVAL.encode() not in self.params_json:
            return False
        params = self.params
        meta = params.get("_meta")
        return params.get("mode", "form") == "form" and isinstance(meta, dict) and meta.get(APPROVAL) is True


def input_requests(questions: Iterable[Question]) -> bytes:
    """The member `inputRequests`."""
    parts = []
    for question in questions:
        params = b',"params":' + question.params_json if question.params_json else b""
        method = msgspec.json.encode(question.method)
        parts.append(msgspec.json.encode(question.key) + b':{"method":' + method + params + b"}")
    return b"{" + b",".join(parts) + b"}"


def missing_capabilities(questions: Iterable[Question], declared: dict[str, Any]) -> dict[str, Any]:
    """The capabilities without which a client cannot be shown the questions, as `requiredCapabilities`; empty for none."""
    missing: dict[str, Any] = {}
    for question in questions:
        for path in _needs(question):
            if not _has(declared, path):
                reduce(lambda inner, name: inner.setdefault(name, {}), path, missing)
    return missing


def _needs(question: Question) -> list[tuple[str, ...]]:
    match question.method:
        case "elicitation/create":
            return [("elicitation", "url" if question.params.get("mode") == "url" else "form")]
        case "sampling/createMessage":
            params = question.params
            needs: list[tuple[str, ...]] = [("sampling",)]
            if "tools" in params or "toolChoice" in params:
                needs.append(("sampling", "tools"))
            if params.get("includeContext", "none") != "none":
                needs.append(("sampling", "context"))
            return needs
        case "roots/list":
            return [("roots",)]
        case method:  # a kind that is not known here: a client that knows it says so by its first word
            return [(method.partition("/")[0],)]


def _has(declared: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a client declared a capability. An elicitation without modes means forms."""
    if path == ("elicitation", "form") and declared.get("elicitation") == {}:
        return True
    found: Any = declared
    for name in path:
        if not isinstance(found, dict) or found.get(name) in (None, False):
            return False
        found = found[name]
    return True
