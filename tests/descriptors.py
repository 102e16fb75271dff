"""What the API is made of, read from its descriptors, so that no list in a test can miss what was added."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

import taskstore.v1
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

READS: Final = frozenset(
    {
        *("GetTask", "GetTasks", "FindTask", "ListTasks", "WatchTasks", "ListTaskHistory", "ListCheckpoints", "GetCheckpoint"),
        *("GetSignal", "ListSignals", "ExplainTask"),
        *("LoadInput", "LoadEarlyAnswers", "LoadCheckpoints", "WatchLeases"),
        *("GetTenant", "ListAuditLines", "ListRegistrations", "GetBudget", "ListBudgetFacts", "ListTombstones", "GetTombstone"),
        *("ListCleanupTenants", "GetRetention", "ListHolds", "ListPurges", "GetPurgeEvidence"),
    }
)
"""Methods that write nothing: each is a single read, or several of one."""


def files() -> Iterator[FileDescriptor]:
    """Every file of `taskstore.v1`."""
    for module in pkgutil.iter_modules(taskstore.v1.__path__):
        if module.name.endswith("_pb2"):
            yield importlib.import_module(f"taskstore.v1.{module.name}").DESCRIPTOR


def methods() -> dict[str, MethodDescriptor]:
    """Every method of every service, by its name."""
    found = [method for file in files() for service in file.services_by_name.values() for method in service.methods]
    assert len({method.name for method in found}) == len(found), "two methods have one name"
    return {method.name: method for method in found}
