"""`requestState`: what a client carries from round to round, sealed, so that it can be read and made here only.

Source: contract, sections 4 and 10.4; security checklist H25.
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

from mcp_bridge.wire.failures import Failure, invalid_params

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_CHARACTERS: Final = 256 * 1024
_PURPOSE: Final = b"tenure requestState 1"


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
    """Seals and opens states with AES-256-GCM. The first key seals, all of them open, so that keys can be changed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]

    def seal(self, state: RequestState, *, bound_to: Sequence[bytes]) -> str:
        """The state as text. It opens only with the same `bound_to`: who called what."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._ciphers[0].encrypt(nonce, msgspec.json.encode(state), _digest(bound_to))
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, text: str, *, bound_to: Sequence[bytes]) -> RequestState:
        """The state that was sealed. Raises Failure -32602 for whatever was not sealed here for the same `bound_to`."""
        try:
            if len(text) > _CHARACTERS:
                raise bad_state()
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise bad_state() from None
        nonce, rest, bound = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _digest(bound_to)
        if len(nonce) < _NONCE_BYTES:
            raise bad_state()
        for cipher in self._ciphers:
            try:
                return _DECODER.decode(cipher.decrypt(nonce, rest, bound))
            except InvalidTag:
                continue
            except msgspec.DecodeError:  # sealed by another version of the bridge
                break
        raise bad_state()


def bad_state() -> Failure:
    """The one answer for a state that is forged, changed, expired, or of another call or caller."""
    return invalid_params("requestState is not one that was given out here for this call, or it has expired; call anew")


def _digest(bound_to: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256(_PURPOSE)
    for part in bound_to:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
