"""What clients carry for us, sealed, so that it can be read and made here only: `requestState` from round to round, and the
session of an earlier client.

Source: contract, sections 4, 10.4 and 10.5; security checklist H25.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcp_bridge.wire.failures import Failure, invalid_params, session_not_found

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_CHARACTERS: Final = 256 * 1024
_STATE: Final = b"tenure requestState 1"
_SESSION: Final = b"tenure session 1"
_SESSION_BYTES: Final = 16


class RequestState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a call stands between two rounds."""

    call_id: str
    """The store's request id, drawn in the first round: a round that is sent twice finds the same task."""
    expires_at_ms: int
    """By the database's clock once there is a task, before that by the bridge's."""
    rounds: int
    """How many times the call was answered with `input_required`."""
    task_id: str = ""
    """Empty while questions are asked that come before the work."""
    has_key: bool = False
    """Whether the call came with an idempotency key."""
    reports_shown: int = 0
    """The number of the last report of progress that the call was shown."""
    answers: dict[str, msgspec.Raw] = {}
    """What was answered before the work, as it was sent."""


_DECODER: Final = msgspec.json.Decoder(RequestState)


class StateKeys:
    """Seals and opens with AES-256-GCM. The first key seals, all of them open, so that keys can be changed.

    What was sealed opens only with the same `bound_to`.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]

    def seal(self, state: RequestState, *, bound_to: Sequence[bytes]) -> str:
        """The state as text, bound to who called what."""
        return self._seal(msgspec.json.encode(state), (_STATE, *bound_to))

    def open(self, text: str, *, bound_to: Sequence[bytes]) -> RequestState:
        """The state that was sealed. Raises Failure -32602 for whatever was not sealed here for the same `bound_to`."""
        data = self._open(text, (_STATE, *bound_to))
        try:
            return _DECODER.decode(data or b"")
        except msgspec.DecodeError:  # not sealed here, or by another version of the bridge
            raise bad_state() from None

    def mint_session(self, *, bound_to: Sequence[bytes]) -> str:
        """A new session as text, bound to who opened it. Any bridge with the same keys can check it."""
        return self._seal(os.urandom(_SESSION_BYTES), (_SESSION, *bound_to))

    def open_session(self, text: str, *, bound_to: Sequence[bytes]) -> bytes:
        """What tells the session from all others. Raises Failure 404 for one that was not minted here for the same
        `bound_to`."""
        data = self._open(text, (_SESSION, *bound_to))
        if data is None:
            raise session_not_found()
        return data

    def _seal(self, data: bytes, bound_to: Sequence[bytes]) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._ciphers[0].encrypt(nonce, data, _digest(bound_to))
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def _open(self, text: str, bound_to: Sequence[bytes]) -> bytes | None:
        if len(text) > _CHARACTERS:
            return None
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        nonce, rest, bound = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _digest(bound_to)
        if len(nonce) < _NONCE_BYTES:
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(nonce, rest, bound)
            except InvalidTag:
                continue
        return None


def bad_state() -> Failure:
    """The one answer for a state that is forged, changed, expired, or of another call or caller."""
    return invalid_params("requestState is not one that was given out here for this call, or it has expired; call anew")


def _digest(bound_to: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in bound_to:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
