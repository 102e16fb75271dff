"""What identifies a call: digests. Source: contract, section 10.4."""

import hashlib
from typing import Any

import msgspec


def call_digest(tool: str, arguments: dict[str, Any]) -> bytes:
    """SHA-256 over the canonical JSON of what is called, however its bytes were written. 32 bytes.

    Nothing else of a call counts: no `_meta`, `inputResponses`, `requestState` or `task`.
    """
    return hashlib.sha256(msgspec.json.encode({"tool": tool, "arguments": arguments}, order="sorted")).digest()


def call_reference(session: bytes, request_id: int | str) -> str:
    """What names a call in the store by its session and its JSON-RPC id, which is unique there; 64 hexadecimal digits."""
    return hashlib.sha256(session + msgspec.json.encode(request_id)).hexdigest()


def request_id(issuer: str, subject: str, key: str) -> str:
    """The store's request id for a client's idempotency key: the same for the same principal and key, within a tenant.
    SHA-256 over each part with its length, so that no two triples read alike; 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in (issuer, subject, key):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
