"""What the machine may say: small pools, so that things meet; the edges of every bound; and what is beyond them."""

from typing import Any, Final

from hypothesis import strategies as st

from tests.model.contract.checks import DAY_MS, KIB, MIB, TIMES, YEARS
from tests.model.contract.ledger import MOST
from tests.model.contract.rows import CleanupLease, Lease

TENANTS: Final = ("acme", "beta")
WORKERS: Final = ("w1", "w2", "w3")
LANES: Final = (("report", 1), ("report", 2), ("mail", 1))
CLEANERS: Final = ("c1", "c2")
PRINCIPALS: Final = ("ann", "bob", "cid")
OWNERS: Final = (("test", "ann"), ("test", "bob"))
NAMES: Final = ("go", "stop")
SIGNAL_IDS: Final = ("s0", "s1", "s2", "s3", "s4")
UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"
DEEPEST: Final = b"[" * 64 + b"]" * 64
LONGEST: Final = b"7" * 640

# The first is the one most wanted: shrinking leads to it, and it is offered twice.
tenants = st.sampled_from(TENANTS)
workers = st.sampled_from(WORKERS)
lanes = st.sampled_from((*[LANES[0]] * 3, *LANES))
owners = st.sampled_from((OWNERS[0], *OWNERS))
wanted_lanes = st.one_of(st.just(LANES), st.lists(lanes, min_size=1, max_size=2).map(tuple))
request_ids = st.sampled_from([f"r{n}" for n in range(6)])
claim_ids = st.sampled_from([f"c{n}" for n in range(12)])
payloads = st.sampled_from([b"1", b'{"z": 1, "a": "\\u0000"}', b"1.0", b"12345678901234567890123", DEEPEST])
perhaps_payloads = st.one_of(st.none(), payloads)
media_types = st.sampled_from(["", "", "", "application/json", "text/plain", "m" * 128])
priorities = st.sampled_from([0, 0, 1, -1, 2**31 - 1, -(2**31)])
deadlines_ms = st.sampled_from([*[0] * 12, 1, 15_000, 40_000, YEARS - 1])
ttls_ms = st.sampled_from([0, 1, DAY_MS, 10 * YEARS - 1])
leases_ms = st.sampled_from([10_000, 10_000, 1_000, 30_000, 900_000])
limits = st.sampled_from([1, 1, 2, 10, 11, 25, 500])
waits_ms = st.sampled_from([0, 0, 0, 0, 1])
delays_ms = st.sampled_from([0, 1, 5_000, DAY_MS])
timeouts_ms = st.sampled_from([0, 0, 1, 10_000, 20_000, YEARS - 1])
timers_ms = st.sampled_from([1, 10_000, 20_000, YEARS - 1])
signal_ids = st.sampled_from(SIGNAL_IDS)
questions = st.lists(
    st.tuples(st.sampled_from(("a", "a", "b")), payloads), min_size=1, max_size=3, unique_by=lambda one: one[0]
).map(tuple)
keys = st.sampled_from(("a", "b", "c", "a#2", "b#2", "a#3", "never"))
fitting = st.sampled_from([(), ("a", "b", "c"), ("a", "b", "c"), ("b", "a#2", "b#2"), ("a", "a")])
answers = st.dictionaries(keys, payloads, min_size=1, max_size=3).map(lambda given: tuple(given.items()))
retries = st.sampled_from([None, (1, 1, 1), (3, 1, DAY_MS), (3, 4_000, 6_000), (10, 10_000, 10_000)])
policies = st.sampled_from([(1, 1), (3, 1), (3, 2), (10, 3), (10_000, 100)])
rates = st.sampled_from([0, 0, 0, 0, 1, 3])
input_bytes = st.sampled_from([0, 0, 0, 2])
digests = st.sampled_from([b"", b"", b"", b"", b"d" * 32])
scopes: st.SearchStrategy[dict[str, Any]] = st.sampled_from([
    {}, {}, {"workflow": "report"}, {"workflow": "report", "version": 1}, {"workflow": "mail"},
    {"workflow": "none", "version": 2**31 - 1},
])  # fmt: skip
retentions_ms = st.sampled_from([DAY_MS, 3 * DAY_MS])
dice = st.sampled_from([0.0, 0.25, 0.999999])
page_sizes = st.sampled_from([0, 1, 1, 2, 256])
budgets = st.sampled_from([
    {"tokens": 100}, {"tokens": 100}, {"tokens": 100}, {"tokens": 40, "turns": 3}, {"turns": 5}, {"delegations": 0},
    {"tokens": MOST, "duration_us": 1},
])  # fmt: skip
windows_ms = st.sampled_from([30_000, 30_000, 1, 10 * YEARS - 1])
recoveries_ms = st.sampled_from([0, 5_000, 5_000, YEARS - 1])
bounds = st.sampled_from([
    {"tokens": 30, "turns": 2, "duration_us": 1, "delegations": 0},
    {"tokens": 60, "turns": 1, "duration_us": 0, "delegations": 0},
    {"tokens": 100, "turns": 3, "duration_us": 1, "delegations": 1}, {"tokens": 30}, {"turns": 2}, {},
])  # fmt: skip
usages = st.sampled_from(
    [{}, {}, {"tokens": 10}, {"tokens": 20, "turns": 1}, {"tokens": 30, "turns": 2}, {"tokens": 61}, {"turns": 4}]
)
new_tasks: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda lane, early, contract, fields: fields | contract | {"workflow": lane[0], "version": lane[1], "early": early},
    lanes,
    st.one_of(st.just(()), answers),
    st.sampled_from([
        {}, {}, {}, {"tool": ""}, {"capabilities": b'{"a": {}}', "schema": b"true", "trace": "00-ab-cd-01"},
        {"poll_ms": 3_600_000, "trace": "00-ef-cd-01", "trace_state": "a=b", "baggage": "k=v"}, *[{"reference": "case 7"}] * 4,
        {"asked_before": ("a", "b", "a")}, {"asked_before": ("a",)},
    ]),
    st.fixed_dictionaries({
        "tenant_id": tenants, "request_id": request_ids, "owner": owners, "data": payloads, "priority": priorities,
        "deadline_ms": deadlines_ms, "abandon_ms": deadlines_ms, "media_type": media_types, "ttl_ms": ttls_ms,
        "digest": digests,
    }),
)  # fmt: skip

_TEXT: Final = ["", " ", "a\0b"]
_NAME: Final = ["", "a b", "a" * 129, "ä", "a/b"]
_JSON: Final = [b"", b"{", b"NaN", b"\xff", b"1 2", b"1e999", b"[" + DEEPEST + b"]", LONGEST + b"7"]
_OWNER: Final = [("", "ann"), ("test", " "), ("x" * 513, "ann"), ("test", "\0")]
_ID: Final = ["", "x", UNKNOWN.replace("4", "A"), "{" + UNKNOWN + "}", UNKNOWN.replace("-", "")]
_TYPE: Final = ["m" * 129, " ", "\0"]
_TASK: Final[dict[str, list[Any]]] = {"tenant_id": _NAME, "task_id": _ID}
_OWNED: Final = _TASK | {"owner": _OWNER}
_ANSWERS: Final[list[Any]] = [
    (("", b"1"),), (("a", b"{"),), (("a", b"1"), ("k" * 161, b"1")), (("a", b"1"), ("a", b"2")),
    (("a", b'"' + b"x" * 255 * KIB + b'"'),),
]  # fmt: skip
_LEASE: Final = [Lease("", UNKNOWN, "w1", 1, 1), Lease("acme", "x", "w1", 1, 1), Lease("acme", UNKNOWN, "", 1, 1)]
_CLEANUP: Final = [CleanupLease("", "c1", 1, 1), CleanupLease("acme", "a b", 1, 1)]
_PRINCIPAL: Final[dict[str, list[Any]]] = {"principal": [*_TEXT, "p" * 2_049]}
_DECISION: Final[dict[str, list[Any]]] = {"tenant_id": _NAME, "number": [-1], "claim_token": [-1]}
_PAGE: Final = {"page_size": [-1, 257]}
_LONG_PAGE: Final = {"page_size": [-1, 1_001]}
_SCOPED: Final[dict[str, list[Any]]] = {"tenant_id": _NAME, "workflow": [" ", "\0", "w" * 257], "version": [-1]}
_ACTOR: Final = [*_TEXT, "a" * 257]
_AMOUNTS: Final = [{"tokens": -1}, {"tokens": MOST + 1}]

INVALID: Final[dict[str, dict[str, list[Any]]]] = {
    "create_task": {
        "tenant_id": _NAME, "request_id": [*_TEXT, "r" * 129], "workflow": [*_TEXT, "w" * 257], "version": [0, -1],
        "owner": _OWNER, "data": [*_JSON, b'"' + b"x" * MIB + b'"'], "media_type": _TYPE, "tool": ["t" * 129, "\0"],
        "capabilities": [b"{", b'"' + b"x" * 64 * KIB + b'"'], "schema": [b"]"], "trace": ["t" * 513],
        "trace_state": ["t" * 513], "baggage": ["b" * 8193, "\0"], "reference": ["r" * 129, "\0"],
        "digest": [b"d", b"d" * 33],
        "ttl_ms": [-1, 10 * YEARS], "poll_ms": [-1, 3_600_001], "deadline_ms": [-1, YEARS], "abandon_ms": [-1, YEARS],
        "early": [*_ANSWERS, tuple((f"k{n}", b"1") for n in range(17))],
        "asked_before": [("",), ("a#2",), ("k" * 129,), tuple(f"k{n}" for n in range(17))],
    },
    "fork_task": {"tenant_id": _NAME, "request_id": _TEXT, "source_task_id": _ID, "checkpoints": [-1], "owner": _OWNER},
    "get_task": _OWNED | {"view": [4, -1]},
    "find_task": {"tenant_id": _NAME, "reference": [*_TEXT, "r" * 129], "owner": _OWNER, "view": [4, -1]},
    "cancel_task": _OWNED | {"mode": [3, -1]},
    "attach_task": _OWNED | {"abandon_ms": [-1, YEARS]},
    "watch_tasks": _OWNED | {"view": [4], "known_change": [-1], "known_report": [-1]},
    "list_tasks": _LONG_PAGE | {
        "tenant_id": _NAME, "states": [(0,), (7,), ("QUEUED", -1)], "workflow": ["\0", "w" * 257],
        "created_from": [TIMES[-1] + 1], "created_before": [TIMES[0] - 1], "page_token": ["x", "1.2"],
    },
    "list_signals": _LONG_PAGE | {
        "tenant_id": _NAME, "states": [(0,), (4,), ("PENDING", -1)], "task_id": ["x"], "page_token": ["x", "x.a", "1."],
    },
    "list_task_history": _TASK | _PAGE | {"from_line": [-1]},
    "list_checkpoints": _TASK | _PAGE | {"from_revision": [-1]},
    "answer_inputs": _OWNED | {
        "answers": [(), *_ANSWERS, tuple((f"k{n}", b"1") for n in range(101))], "answer_type": ["text/plain"],
        "answered_by": _OWNER,
    },
    "publish_signal": _OWNED | {
        "signal_id": [*_TEXT, "s" * 129], "name": _NAME, "data": [*_JSON, b'"' + b"x" * MIB + b'"'], "media_type": _TYPE,
    },
    "get_signal": {"tenant_id": _NAME, "signal_id": [*_TEXT, "s" * 129]},
    "get_checkpoint": _TASK | {"revision": [-1]},
    "get_tombstone": _TASK,
    "list_tombstones": _LONG_PAGE | {"tenant_id": _NAME, "after_cursor": [-1]},
    "lease_tasks": {
        "request_id": [*_TEXT, "c" * 129], "worker_id": _NAME, "limit": [0, -1, 501], "lease_ms": [999, 900_001, 0, -1],
        "own_ms": [999, 900_001, -1],
        "workflows": [(), (("", 1),), (("report", 0),), (("report", 1),) * 501], "wait_ms": [-1, 60_001],
        "tenant_ids": [("",), ("acme", "a b"), ("acme",) * 1_001],
    },
    "heartbeat_task": {"lease": _LEASE, "lease_ms": [999, 900_001, -1]},
    "report_progress": {
        "lease": _LEASE, "value": [float("nan"), float("inf")], "total": [float("-inf")], "message": ["\0", "m" * 1025],
    },
    "load_input": {"lease": _LEASE}, "load_early_answers": {"lease": _LEASE}, "confirm_cancel": {"lease": _LEASE},
    "load_checkpoints": _PAGE | {"lease": _LEASE, "from_revision": [-1]},
    "watch_leases": {"worker_id": _NAME},
    "append_checkpoint": {"lease": _LEASE, "revision": [-1], "step": [*_TEXT, "s" * 257], "data": _JSON, "media_type": _TYPE},
    "complete_task": {"lease": _LEASE, "data": _JSON, "media_type": _TYPE},
    "fail_task": {"lease": _LEASE,
        "message": [*_TEXT, "m" * 1025], "data": [*_JSON, b'"' + b"x" * 64 * KIB + b'"'],
        "retry": [(0, 1, 1), (1, 0, 1), (1, 2, 1), (1, 1, DAY_MS + 1), (-1, 1, 1)],
    },
    "release_task": {"lease": _LEASE, "delay_ms": [-1, DAY_MS + 1]},
    "suspend_task": {"lease": _LEASE, "step": [*_TEXT, "s" * 257], "wait": [
        {"timer_ms": 0}, {"timer_ms": -1}, {"timer_ms": YEARS}, {"signal": "a b"}, {"signal": ""}, {},
        {"signal": "go", "timeout_ms": -1}, {"questions": ()}, {"questions": (("a#2", b"1"),)}, {"questions": (("", b"1"),)},
        {"questions": (("a", b"1"), ("a", b"2"))}, {"questions": (("a", b"{"),)},
        {"questions": (("a", b"1"),), "fitting": ("",)}, {"questions": (("a", b"1"),), "fitting": ("k" * 161,)},
        {"questions": (("a", b"1"),), "fitting": tuple(f"k{n}" for n in range(17))},
        {"questions": (("a", b"1"),), "params_type": "text/plain"}, {"questions": (("a", b'"' + b"x" * 64 * KIB + b'"'),)},
        {"questions": tuple((f"q{n}", b"1") for n in range(17))}, {"questions": (("a", b"1"),), "timeout_ms": YEARS},
    ]},
    "reserve_budget": {"lease": _LEASE, "limits": _AMOUNTS, "usage": _AMOUNTS},
    "settle_budget": {"lease": _LEASE, "usage": _AMOUNTS},
    "set_tenant_policy": {
        "tenant_id": _NAME, "max_outstanding": [0, -1], "max_leased": [0, -1, 2**31 - 1],
        "retention_ms": [DAY_MS - 1, 100 * YEARS],
        "max_input_bytes": [-1, MIB + 1], "max_creates_per_second": [-1],
    },
    "get_tenant": {"tenant_id": _NAME},
    "pause_work": _SCOPED | {"actor": _ACTOR, "reason": ["r" * 1025, "\0"]},
    "resume_work": _SCOPED,
    "redrive_tasks": _SCOPED | {
        "actor": _ACTOR, "request_id": [" ", "a\0b", "r" * 129], "reasons": [(0,), (4,), ("WORKER", -1)], "limit": [-1, 1_001],
        "failed_from": [TIMES[-1] + 1], "failed_before": [TIMES[0] - 1], "task_ids": [("x",), (UNKNOWN,) * 1_001],
    },
    "set_budget_policy": {
        "tenant_id": _NAME, "limits": [{}, *_AMOUNTS], "window_ms": [0, -1, 10 * YEARS], "recovery_ms": [-1, YEARS],
    },
    "remove_budget_policy": {"tenant_id": _NAME},
    "get_budget": {"tenant_id": _NAME},
    "confirm_budget_export": {"tenant_id": _NAME, "through_cursor": [-1, 10**6]},
    "compact_budget_facts": {"tenant_id": _NAME, "older_than_ms": [0, -1, 10 * YEARS], "limit": [-1, 1_001]},
    "list_budget_facts": _LONG_PAGE | {"tenant_id": _NAME, "after_cursor": [-1]},
    "list_cleanup_tenants": _LONG_PAGE | {"tenant_ids": [("",), ("a b",), ("acme",) * 1_001], "after_tenant_id": ["a b"]},
    "claim_cleanup": _PRINCIPAL | {"tenant_id": _NAME, "owner_id": _NAME, "lease_ms": [0, 999, 900_001, -1]},
    "heartbeat_cleanup": _PRINCIPAL | {"lease": _CLEANUP, "lease_ms": [0, 999, 900_001, -1]},
    "release_cleanup": _PRINCIPAL | {"lease": _CLEANUP},
    "remove_tasks": _PRINCIPAL | {"lease": _CLEANUP, "limit": [-1, 1_001]},
    "place_hold": _PRINCIPAL | _TASK | {"reason": [*_TEXT, "r" * 1_025]},
    "release_hold": _PRINCIPAL | {"tenant_id": _NAME, "number": [-1]},
    "get_retention": {"tenant_id": _NAME},
    "confirm_export": _PRINCIPAL | {
        "tenant_id": _NAME, "through_cursor": [0, -1, 10**6], "receipt": [*_TEXT, "r" * 513, "a\nb", "\x7f"],
    },
    "prepare_purge": _PRINCIPAL | {
        "lease": _CLEANUP, "request_id": [*_TEXT, "r" * 129], "retention_ms": [0, -1, 10 * YEARS],
        "approval_ms": [0, -1, 10 * YEARS], "limit": [-1, 1_001],
    },
    "list_purges": _LONG_PAGE | {"tenant_id": _NAME, "states": [(0,), (7,), ("PENDING", -1)], "after_number": [-1]},
    "claim_purge": _PRINCIPAL | {"tenant_id": _NAME, "number": [-1], "lease_ms": [0, 999, 900_001, -1]},
    "approve_purge": _PRINCIPAL | _DECISION,
    "reject_purge": _PRINCIPAL | _DECISION | {"reason": [*_TEXT, "r" * 1_025, "a\tb"]},
    "execute_purge": _PRINCIPAL | {"lease": _CLEANUP, "number": [-1]},
    "get_purge_evidence": {"tenant_id": _NAME, "number": [-1]},
    "list_holds": _LONG_PAGE | {"tenant_id": _NAME, "task_id": _ID[1:], "after_number": [-1]},
    "compact_signals": {"tenant_id": _NAME, "older_than_ms": [0, -1, 10 * YEARS], "limit": [-1, 1_001]},
}  # fmt: skip
"""For each operation and field what it must refuse."""


SPOILED: Final = {
    name: [(field, value) for field, values in fields.items() for value in values] for name, fields in INVALID.items()
}
"""The same, one after the other."""
