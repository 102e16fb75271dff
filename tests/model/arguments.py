"""What the machine may say: small pools, so that things meet; the edges of every bound; and what is beyond them."""

from typing import Any, Final

from hypothesis import strategies as st

from tests.model.checks import DAY_MS, YEARS

TENANTS: Final = ("acme", "beta")
WORKERS: Final = ("w1", "w2", "w3")
LANES: Final = (("report", 1), ("report", 2), ("mail", 1))
OWNERS: Final = (("test", "ann"), ("test", "bob"))
NAMES: Final = ("go", "stop")
UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"

# The first is the one most wanted: shrinking leads to it, and it is offered twice.
tenants = st.sampled_from(TENANTS)
workers = st.sampled_from(WORKERS)
lanes = st.sampled_from((*[LANES[0]] * 3, *LANES))
owners = st.sampled_from((OWNERS[0], *OWNERS))
request_ids = st.sampled_from([f"r{n}" for n in range(6)])
claim_ids = st.sampled_from([f"c{n}" for n in range(12)])
payloads = st.sampled_from([b"1", b'{"z": 1, "a": "\\u0000"}', b"1.0", b"12345678901234567890123", b"[" * 64 + b"]" * 64])
media_types = st.sampled_from(["", "", "", "application/json", "text/plain"])
priorities = st.sampled_from([0, 0, 1, -1, 2**31 - 1, -(2**31)])
deadlines_ms = st.sampled_from([*[0] * 12, 1, 15_000, 40_000, YEARS - 1])
ttls_ms = st.sampled_from([0, 1, DAY_MS])
leases_ms = st.sampled_from([10_000, 10_000, 1_000, 30_000, 900_000])
limits = st.sampled_from([1, 1, 2, 10, 11, 25, 500])
delays_ms = st.sampled_from([0, 1, 5_000, DAY_MS])
timeouts_ms = st.sampled_from([0, 0, 1, 10_000, 20_000, YEARS - 1])
signal_ids = st.sampled_from([f"s{n}" for n in range(5)])
questions = st.lists(
    st.tuples(st.sampled_from(("a", "a", "b")), payloads), min_size=1, max_size=3, unique_by=lambda one: one[0]
)
keys = st.sampled_from(("a", "b", "c", "a#2", "b#2", "a#3", "never"))
fitting = st.sampled_from([(), ("a", "b", "c"), ("a", "b", "c"), ("b", "a#2", "b#2"), ("a", "a")])
answers = st.dictionaries(keys, payloads, min_size=1, max_size=3)
retries = st.sampled_from([None, (1, 1, 1), (3, 1, DAY_MS), (3, 4_000, 6_000), (10, 10_000, 10_000)])
policies = st.sampled_from([(1, 1), (3, 1), (3, 2), (10, 3), (10_000, 100)])
rates = st.sampled_from([0, 0, 0, 0, 1, 3])
input_bytes = st.sampled_from([0, 0, 0, 2])
digests = st.sampled_from([b"", b"", b"", b"", b"d" * 32])
retentions_ms = st.sampled_from([DAY_MS, 3 * DAY_MS])
dice = st.sampled_from([0.0, 0.25, 0.999999])
new_tasks: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda lane, early, fields: fields | {"workflow": lane[0], "version": lane[1], "early": early},
    lanes,
    st.one_of(st.none(), answers),
    st.fixed_dictionaries({
        "tenant_id": tenants, "request_id": request_ids, "owner": owners, "data": payloads, "priority": priorities,
        "deadline_ms": deadlines_ms, "abandon_ms": deadlines_ms, "media_type": media_types, "ttl_ms": ttls_ms,
        "digest": digests,
    }),
)  # fmt: skip

_TEXT: Final = ["", " ", "a\0b"]
_NAME: Final = ["", "a b", "a" * 129, "ä", "a/b"]
_JSON: Final = [b"", b"{", b"NaN", b"\xff", b"1 2", b"[" * 65 + b"]" * 65]
_OWNER: Final = [("", "ann"), ("test", " "), ("x" * 513, "ann"), ("test", "\0")]
_ID: Final = ["", "x", UNKNOWN.replace("4", "A"), "{" + UNKNOWN + "}", UNKNOWN.replace("-", "")]

INVALID: Final[dict[str, dict[str, list[Any]]]] = {
    "create_task": {
        "tenant_id": _NAME, "request_id": [*_TEXT, "r" * 129], "workflow": [*_TEXT, "w" * 257], "version": [0, -1],
        "owner": _OWNER, "data": [*_JSON, b'"' + b"x" * 1024 * 1024 + b'"'], "media_type": ["m" * 129],
        "digest": [b"d", b"d" * 33],
        "ttl_ms": [-1, 10 * YEARS], "poll_ms": [-1, 3_600_001], "deadline_ms": [-1, YEARS], "abandon_ms": [-1, YEARS],
        "early": [{"": b"1"}, {"a": b"{"}, {"k" * 161: b"1"}, {f"k{n}": b"1" for n in range(17)}],
    },
    "fork_task": {"tenant_id": _NAME, "request_id": _TEXT, "source_task_id": _ID, "checkpoints": [-1], "owner": _OWNER},
    "get_task": {"tenant_id": _NAME, "task_id": _ID, "owner": _OWNER, "view": [4, -1]},
    "cancel_task": {"tenant_id": _NAME, "task_id": _ID, "owner": _OWNER, "mode": [3, -1]},
    "attach_task": {"tenant_id": _NAME, "task_id": _ID, "owner": _OWNER, "abandon_ms": [-1, YEARS]},
    "answer_inputs": {
        "tenant_id": _NAME, "task_id": _ID, "owner": _OWNER,
        "answers": [{}, {"": b"1"}, {"a": b"{"}, {"a": b"1", "k" * 161: b"1"}, {f"k{n}": b"1" for n in range(101)}],
    },
    "publish_signal": {
        "tenant_id": _NAME, "task_id": _ID, "owner": _OWNER, "signal_id": [*_TEXT, "s" * 129], "name": _NAME, "data": _JSON,
    },
    "get_signal": {"tenant_id": _NAME, "signal_id": [*_TEXT, "s" * 129]},
    "get_checkpoint": {"tenant_id": _NAME, "task_id": _ID, "revision": [-1]},
    "get_tombstone": {"task_id": _ID},
    "lease_tasks": {
        "request_id": [*_TEXT, "c" * 129], "worker_id": _NAME, "workflows": [(), (("", 1),), (("report", 0),)],
        "limit": [0, -1, 501], "lease_ms": [999, 900_001, 0, -1], "tenant_ids": [("",), ("acme", "a b")],
    },
    "heartbeat_task": {"lease_ms": [999, 900_001, -1]},
    "report_progress": {"value": [float("nan"), float("inf")], "total": [float("-inf")], "message": ["\0", "m" * 1025]},
    "load_checkpoints": {"from_revision": [-1]},
    "append_checkpoint": {"revision": [-1], "step": [*_TEXT, "s" * 257], "data": _JSON},
    "complete_task": {"data": _JSON},
    "fail_task": {
        "message": [*_TEXT, "m" * 1025], "data": [*_JSON, b'"' + b"x" * 64 * 1024 + b'"'],
        "retry": [(0, 1, 1), (1, 0, 1), (1, 2, 1), (1, 1, DAY_MS + 1), (-1, 1, 1)],
    },
    "release_task": {"delay_ms": [-1, DAY_MS + 1]},
    "suspend_task": {"step": [*_TEXT, "s" * 257], "wait": [
        {"timer_ms": 0}, {"timer_ms": -1}, {"timer_ms": YEARS}, {"signal": "a b"}, {"signal": ""},
        {"signal": "go", "timeout_ms": -1}, {"questions": ()}, {"questions": (("a#2", b"1"),)}, {"questions": (("", b"1"),)},
        {"questions": (("a", b"1"),), "fitting": ("",)}, {"questions": (("a", b"1"),), "fitting": ("k" * 161,)},
        {"questions": (("a", b"1"),), "fitting": tuple(f"k{n}" for n in range(17))},
        {"questions": (("a", b"1"), ("a", b"2"))}, {"questions": (("a", b"{"),)},
        {"questions": tuple((f"q{n}", b"1") for n in range(17))}, {"questions": (("a", b"1"),), "timeout_ms": YEARS},
    ]},
    "set_tenant_policy": {
        "tenant_id": _NAME, "max_outstanding": [0, -1], "max_leased": [0, -1, 2**31 - 1],
        "retention_ms": [DAY_MS - 1, 100 * YEARS],
        "max_input_bytes": [-1, 1024 * 1024 + 1], "max_creates_per_second": [-1],
    },
    "get_tenant": {"tenant_id": _NAME},
    "remove_tasks": {"tenant_id": _NAME, "limit": [-1, 1_001]},
    "compact_signals": {"tenant_id": _NAME, "older_than_ms": [0, -1, 10 * YEARS]},
}  # fmt: skip
"""For each operation and field what it must refuse."""


def spoiled(operation: str) -> st.SearchStrategy[tuple[str, Any] | None]:
    """Mostly nothing; else one field and a value that is not allowed."""
    fields = [(name, value) for name, values in INVALID.get(operation, {}).items() for value in values]
    once_in_a_while = st.sampled_from([False] * 11 + [True])
    return once_in_a_while.flatmap(lambda now: st.sampled_from(fields) if now and fields else st.none())
