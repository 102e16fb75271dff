"""The examples of the READMEs are read, and run, by what they are examples for."""

import hashlib
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from taskstore.v1 import leases_pb2, retention_pb2

from mcp_bridge.access.routes_file import load_routes
from store_service.client import BudgetAmounts, Context, Done, RetryPolicy, ToolError
from store_service.client.testing import WorkflowTest
from store_service.rpc.policy import Permission, Role, read_policy
from tests.conftest import Clock, Stubs
from tests.readmes.blocks import blocks
from tests.store.builders import TENANT
from tests.store.retention import removed

WORKER = "store_service/client/README.md"


def block(file: str, has: str) -> str:
    """The one block of a README that has these words."""
    (found,) = [one.text for one in blocks() if one.file == file and has in one.text]
    return found


class Registered:
    """Stands for a worker: it keeps what is registered, with what is said of it."""

    def __init__(self) -> None:
        self.functions: dict[str, tuple[Any, dict[str, Any]]] = {}

    def workflow(self, name: str, **more: Any) -> Any:
        """As of a worker."""

        def register(function: Any) -> Any:
            self.functions[name] = function, more
            return function

        return register


async def run(body: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs code of an example within a coroutine, among these names; returns the names that it has then."""
    code = f"async def example():\n{textwrap.indent(body, '    ')}\n    return locals()"
    exec(code, names)
    left: dict[str, Any] = await names["example"]()
    return left


async def test_the_order_goes_as_its_test_says() -> None:
    worker = Registered()
    charges: list[dict[str, Any]] = []
    names: dict[str, Any] = {
        "worker": worker, "Context": Context, "ToolError": ToolError, "RetryPolicy": RetryPolicy, "WorkflowTest": WorkflowTest,
        "SCHEMA": {"type": "object", "properties": {}}, "make_offer": lambda item: {"item": item, "price": 7},
        "charge": charges.append, "ship": str,
    }  # fmt: skip
    exec(block(WORKER, '@worker.workflow("order")'), names)
    test = block(WORKER, "WorkflowTest(order")
    await run(test, names)
    assert charges == [{"item": "book", "price": 7}], "charged once, although the worker died after it"


async def test_an_effect_is_looked_up_as_shown() -> None:
    call, lookup = re.split(r"\n\n\n", block(WORKER, "find_charge"))
    asked: list[str] = []

    async def find_charge(key: str) -> Done | None:
        asked.append(key)
        return Done("found")

    async def charge(card: str, amount: int) -> None:
        raise TimeoutError(f"{card} {amount}")

    async def pay(ctx: Context, _: Any) -> Any:
        names = {"ctx": ctx, "find_charge": find_charge, "charge": charge, "card": "c", "amount": 5}
        return (await run(call, names))["receipt"]

    assert "async def find_charge(key: str) -> Done | None: ..." in lookup
    async with WorkflowTest(pay) as test:
        result = await test.run()
    assert result["content"][0]["text"] == "found"
    assert len(asked) == 1


@dataclass(frozen=True)
class Reply:
    """What a model says."""

    text: str
    tokens: int
    cost_micro_usd: int


class Model:
    """A model that says what it may say."""

    async def ask(self, prompt: str, *, max_tokens: int) -> Reply:
        """Uses all that it may."""
        return Reply(prompt, max_tokens, 100)


async def test_the_research_keeps_to_its_budget() -> None:
    worker = Registered()
    exec(block(WORKER, '@worker.workflow("research"'), {
        "worker": worker, "BudgetAmounts": BudgetAmounts, "Context": Context, "model": Model(),
    })  # fmt: skip
    research, more = worker.functions["research"]
    async with WorkflowTest(research, limits=more["limits"], budget=BudgetAmounts(tokens=50_000)) as test:
        assert (await test.run({"prompt": "why"}))["structuredContent"] == {"text": "why"}
        assert test.charged.tokens == 20_000


def test_the_policies_are_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    whole = block("store_service/README.md", "example.com/bridge")
    path.write_text(whole + block("store_service/README.md", "example.com/counsel"))
    callers = read_policy(path)
    roles = [(name.rpartition("/")[2], caller.role) for name, caller in callers.items()]
    assert roles == [("bridge", Role.BRIDGE), ("reports", Role.WORKER), ("ann", Role.OPERATOR), ("counsel", Role.OPERATOR)]
    counsel = callers["spiffe://example.com/counsel"]
    may = [(name, tenant) for name in Permission for tenant in ("acme", "other") if counsel.has(name, tenant)]
    assert sorted(may) == [("place_hold", "acme"), ("place_hold", "other"), ("release_hold", "acme")]


def test_the_limits_of_a_tenant_are_read(tmp_path: Path) -> None:
    tool = "{name: t, workflow: w, task: never, input_schema: {type: object}}"
    path = tmp_path / "routes.yaml"
    path.write_text(f"version: 1\n{block('mcp_bridge/README.md', 'caller_limits')}    tools: [{tool}]\n")
    limits = load_routes(str(path)).limits_of("acme")
    assert (limits.tenant.requests_per_second, limits.caller.streams) == (2000, 20)


def test_the_cells_of_tenants_are_read(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(block("mcp_bridge/README.md", "cells:"))
    routes = load_routes(str(path))
    assert (routes.cell_of("acme"), routes.cells["east"]) == ("east", "dns:///tenure-store.east:7233")
    assert routes.cell_of("globex") != "east"


async def test_a_tombstone_is_proved_as_it_is_shown(store: Stubs, clock: Clock) -> None:
    (task_id,) = await removed(store, clock, 1)
    request = retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=task_id)
    tombstone = (await store.retention.GetTombstone(request)).tombstone
    assert tombstone.history
    assert eval(block("store_service/README.md", "hashlib"), {"hashlib": hashlib, "tombstone": tombstone}) is True


SERVICE = leases_pb2.DESCRIPTOR.services_by_name["LeaseService"]


def fields_of(method: str) -> set[str]:
    """The fields of what a method is asked with, without the marks between their words."""
    return {name.replace("_", "") for name in SERVICE.methods_by_name[method].input_type.fields_by_name}


@pytest.mark.parametrize(
    ("has", "asked"),
    [
        ("leaseTasks({", r"leases\.(\w+)\(\{(.*?)\}\);?\)?"),
        ("LeaseTasks(ctx", r"leases\.(\w+)\(ctx, &store\.\w+\{(.*?)\}\)"),
        ("getTasksList()", r"leases\.(\w+)\((.*?)\)(?:;|\.getTasksList|\.build\(\)\))"),
    ],
    ids=["TypeScript", "Go", "Java"],
)
def test_what_the_hearts_of_workers_name_is_in_the_api(has: str, asked: str) -> None:
    calls = re.findall(asked, block("proto/README.md", has))
    methods = {method[0].upper() + method[1:]: words for method, words in calls}
    assert methods.keys() == {"LeaseTasks", "LoadCheckpoints", "AppendCheckpoint", "CompleteTask"}
    for method, words in methods.items():
        if has == "getTasksList()":
            named = re.findall(r"\.set(\w+)\(", words)
        else:
            named = re.findall(r"(?:^|, | )(\w+)(?=:|,| \}|$)", re.sub(r": [^,]*\([^)]*\)|: [^,]+", ":", words.strip()))
        assert {name.lower() for name in named} <= fields_of(method), (method, named)
        assert named or words == "request"
