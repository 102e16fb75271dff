"""The sealed state. Contract, sections 4 and 10.4; security checklist H25."""

import base64
import os

import msgspec
import pytest

from mcp_bridge.config import Config, read_config, read_state_keys
from mcp_bridge.wire.failures import Failure
from mcp_bridge.wire.state import RequestState, StateKeys
from store_service.settings import ConfigError

OLD, NEW = os.urandom(32), os.urandom(32)
STATE = RequestState(call_id="c", expires_at_ms=5, rounds=1, task_id="t", answers={"k": msgspec.Raw(b'{ "a":1}')})
BOUND = (b"tenant", b"subject")


def test_a_state_opens_as_it_was_sealed_and_says_nothing_itself() -> None:
    text = StateKeys([OLD]).seal(STATE, bound_to=BOUND)
    opened = StateKeys([OLD]).open(text, bound_to=BOUND)
    assert (opened.call_id, opened.task_id, opened.rounds, opened.expires_at_ms) == ("c", "t", 1, 5)
    assert bytes(opened.answers["k"]) == b'{ "a":1}'
    assert text != StateKeys([OLD]).seal(STATE, bound_to=BOUND)
    assert b"call_id" not in base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_first_key_seals_and_all_of_them_open() -> None:
    text = StateKeys([OLD]).seal(STATE, bound_to=BOUND)
    assert StateKeys([NEW, OLD]).open(text, bound_to=BOUND).call_id == "c"
    with pytest.raises(Failure):
        StateKeys([OLD]).open(StateKeys([NEW, OLD]).seal(STATE, bound_to=BOUND), bound_to=BOUND)


@pytest.mark.row("H25")
@pytest.mark.must("R-06", "R-08", "E-06")
@pytest.mark.parametrize("bound_to", [(b"tenant", b"other"), (b"tenantsubject",), (b"tenants", b"ubject"), ()])
def test_a_state_does_not_open_for_another_call(bound_to: tuple[bytes, ...]) -> None:
    with pytest.raises(Failure) as refused:
        StateKeys([OLD]).open(StateKeys([OLD]).seal(STATE, bound_to=BOUND), bound_to=bound_to)
    assert refused.value.code == -32602


@pytest.mark.row("H25")
@pytest.mark.must("R-05")
def test_every_changed_bit_is_noticed() -> None:
    keys = StateKeys([OLD])
    sealed = base64.urlsafe_b64decode(keys.seal(STATE, bound_to=BOUND) + "==")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(Failure):
            keys.open(base64.urlsafe_b64encode(changed).decode(), bound_to=BOUND)


@pytest.mark.must("R-05")
@pytest.mark.parametrize("text", ["", "A", "AAAA", "=", "not base64!", "A" * 300_000, "\u00e9"])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(Failure):
        StateKeys([OLD]).open(text, bound_to=BOUND)


@pytest.mark.row("S1")
def test_keys_are_read_from_the_configuration_and_never_shown() -> None:
    good = ",".join(base64.b64encode(key).decode() for key in (NEW, OLD))
    config = read_config({"TENURE_BRIDGE_ROUTES": "r", "TENURE_BRIDGE_STATE_KEYS": good})
    assert read_state_keys(config) == [NEW, OLD]
    assert good[:20] not in repr(config)
    for bad in ("c2hvcnQ=", good + ",secret-but-wrong"):
        with pytest.raises(ConfigError) as error:
            read_config({"TENURE_BRIDGE_ROUTES": "r", "TENURE_BRIDGE_STATE_KEYS": bad})
        assert "TENURE_BRIDGE_STATE_KEYS" in str(error.value)
        assert "secret" not in str(error.value)
    assert read_state_keys(Config(routes="r")) == []
