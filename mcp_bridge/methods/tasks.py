"""`tasks/get`, `tasks/update`, `tasks/cancel`. Source: contract, sections 3 and 5; security checklist, section 3."""

import re
from typing import Final

from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.grants import Action
from mcp_bridge.access.polls import Polls
from mcp_bridge.access.routes import CurrentRoutes, Routes
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call
from mcp_bridge.methods.held import wish_end
from mcp_bridge.methods.rounds import answer_questions, require_shown
from mcp_bridge.translate import detailed_task_members, is_expired, is_terminal, open_questions, poll_interval_ms
from mcp_bridge.wire.failures import invalid_params, task_not_found, too_many
from mcp_bridge.wire.mcp import WHY, read_responses, read_task_id, wants_why
from mcp_bridge.wire.results import Results

_TASK_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOBODYS_ID: Final = "5d0f3c7a-91be-02d6-80c4-7e2f6a1b93d8"
"""An id that the store never gives to a task, as it is no random UUID: it stands for every id that has not the form of
one, so that looking for those takes as long as for any other."""


class TaskMethods:
    """What a caller does with its own tasks.

    An id that is unknown, malformed, expired, of another tenant, or of an owner whose tasks the caller may not see gets one
    and the same answer, after one and the same read of the store.
    """

    def __init__(self, store: Cells, routes: CurrentRoutes, results: Results, polls: Polls) -> None:
        self._store = store
        self._routes = routes
        self._results = results
        self._polls = polls

    async def get_task(self, call: Call) -> bytes:
        """Answers with the task as it stands. Polls that come far faster than asked are refused with 429; a client that
        did not declare what the task asks, with -32021. Whoever asks is told why the task is where it is."""
        task_id = read_task_id(call.params)
        is_why_wanted = wants_why(call.meta)
        call.meta.require_tasks()
        if (seconds := self._polls.take(call.caller, task_id)) is not None:
            raise too_many("Polled too often; keep to pollIntervalMs", seconds)
        routes = self._routes.now
        task = await self._read_task(call, task_id, Action.READ, routes)
        poll_ms = poll_interval_ms(task, routes.longest_poll_ms(task))
        self._polls.advertise(call.caller, task_id, poll_ms)
        questions = routes.asked(call.caller, task, open_questions(task))
        require_shown(call, questions)
        members = detailed_task_members(task, questions, poll_ms)
        if is_why_wanted:
            request = tasks_pb2.ExplainTaskRequest(tenant_id=task.tenant_id, task_id=task.task_id)
            return self._results.write_with({WHY: (await self._store.explain_task(request)).text}, *members)
        return self._results.write(*members)

    async def update_task(self, call: Call) -> bytes:
        """Hands the task the answers to its open questions; those to any other are acknowledged and change nothing.

        Raises Failure -32602, and hands over none, if one of them does not answer its question.
        """
        task_id = read_task_id(call.params)
        responses = read_responses(call.params, call.body)
        if "inputResponses" not in call.params:
            raise invalid_params("inputResponses must be an object")
        call.meta.require_tasks()
        routes = self._routes.now
        task = await self._read_task(call, task_id, Action.ANSWER, routes)
        questions = routes.asked(call.caller, task, open_questions(task))
        await answer_questions(self._store, call.caller, task, questions, responses)
        return self._results.write()

    async def cancel_task(self, call: Call) -> bytes:
        """Records the wish that the task ends. A task that has ended is left as it is, and acknowledged."""
        task_id = read_task_id(call.params)
        call.meta.require_tasks()
        task = await self._read_task(call, task_id, Action.CANCEL, self._routes.now)
        if not is_terminal(task):
            await wish_end(self._store, call.caller, task)
        return self._results.write()

    async def _read_task(self, call: Call, task_id: str, action: Action, routes: Routes) -> types_pb2.Task:
        """A task with which the caller may do this. Raises Failure -32602 when there is none whose handle lives.

        Who may see tasks of others is shown what comes of one after a second read, so that the first, which may find what
        is not the caller's, takes as long whatever is found.
        """
        readable = readable_id(task_id)
        if readable == task_id:
            call.noted["task_id"] = task_id
        reads_others = routes.reads_others(call.caller)
        view = types_pb2.TASK_VIEW_OUTCOME if action is Action.READ else types_pb2.TASK_VIEW_BASIC
        request = tasks_pb2.GetTaskRequest(
            tenant_id=call.caller.tenant,
            task_id=readable,
            owner=None if reads_others else call.caller.owner,
            view=types_pb2.TASK_VIEW_BASIC if reads_others else view,
        )
        task = await self._store.get_task(request)
        if is_expired(task):
            raise task_not_found()
        routes.require(call.caller, action, task)
        if request.view != view:
            request.view = view
            task = await self._store.get_task(request)
        return task


def readable_id(task_id: str) -> str:
    """The id under which the store is asked for a task."""
    return task_id if _TASK_ID.fullmatch(task_id) is not None else _NOBODYS_ID
