"""Runs a workflow function in a test, without services: `async with WorkflowTest(function) as t: await t.run(args)`."""

from store_service.client.testing.harness import WorkflowTest

__all__ = ["WorkflowTest"]
