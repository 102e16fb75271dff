"""What callers do with tasks. Source: store contract, sections 4, 9, 10, 11."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from tests.model.contract.checks import (
    DAY_MS,
    INT31,
    KIB,
    MIB,
    TIMES,
    YEARS,
    Answer,
    Owner,
    Refused,
    check,
    check_choice,
    is_id,
    is_json,
    is_name,
    is_owner,
    is_payload,
    is_text,
    lean,
    page,
    payload,
)  # fmt: skip # isort: skip
from tests.model.contract.rows import TERMINAL, Question, Task, Tenant
from tests.model.contract.state import State

STATES = ("QUEUED", "LEASED", "WAITING", *sorted(TERMINAL))


class Tasks(State):
    """Creation, reading, cancelling and watching."""

    def create_task(
        self, *, tenant_id: str, request_id: str, workflow: str, version: int, owner: Owner, data: bytes, media_type: str = "",
        tool: str = "tool", capabilities: bytes = b"", schema: bytes = b"", trace: str = "", trace_state: str = "",
        baggage: str = "", priority: int = 0,
        ttl_ms: int = 0, poll_ms: int = 0, deadline_ms: int = 0, abandon_ms: int = 0, digest: bytes = b"",
        early: Sequence[tuple[str, bytes]] = (), early_type: str = "", reference: str = "",
        asked_before: Sequence[str] = (), chosen: str = "",
    ) -> Answer:  # fmt: skip
        """Idempotent by request id. Who waits, and answers given early, are no part of the content; a digest stands for it."""
        check(is_name(tenant_id) and is_text(request_id, 128) and is_text(workflow, 256) and 1 <= version < 2**31)
        check(is_owner(owner) and is_payload(media_type, data, MIB) and 0 <= deadline_ms < YEARS and 0 <= abandon_ms < YEARS)
        check(0 <= ttl_ms < 10 * YEARS and 0 <= poll_ms <= 3_600_000 and len(digest) in (0, 32))
        check(is_text(tool, 128, blank=True) and is_text(reference, 128, blank=True))
        check(all(is_text(one, most, blank=True) for one, most in ((trace, 512), (trace_state, 512), (baggage, 8192))))
        check(all(len(one) <= most * KIB and is_json(one or b"0") for one, most in ((capabilities, 64), (schema, 256))))
        check(len(early) <= 16 and are_answers(early, early_type))
        check(len(asked_before) <= 16 and all(is_text(name, 128) and "#" not in name for name in asked_before))
        tenant = self.tenants.setdefault(tenant_id, Tenant())
        tenant.refill(self.now)
        contract = lean(
            tool=tool, workflow=workflow, workflow_version=version, owner={"issuer": owner[0], "subject": owner[1]},
            client_capabilities=capabilities, output_schema=schema, ttl_ms=ttl_ms or DAY_MS, poll_interval_ms=poll_ms or 1_000,
            execution_deadline_ms=deadline_ms, trace_parent=trace, trace_state=trace_state, baggage=baggage,
        )  # fmt: skip
        # What belongs to the call and not to the work is no part of what is asked: a repetition has another.
        asked = {name: value for name, value in contract.items() if name not in ("trace_parent", "trace_state", "baggage")}
        content = digest or ("create", asked, priority, payload(media_type, data))
        if known := self._asked_before(tenant_id, request_id, content):
            return {"task": known.shown(self.now), "replayed": True}
        if len(data) > tenant.max_input_bytes:
            raise Refused("INPUT_TOO_LARGE")
        self._admit(tenant_id)
        task = Task(
            tenant_id, chosen, request_id, reference, content, contract, priority, payload(media_type, data), self.now,
            self.now, self.now, self._in(deadline_ms), self._in(abandon_ms), early=dict(early),
            early_given=len(early),
        )  # fmt: skip
        task.questions = [Question(name, name, 0, "", b"", self.now, "OVER") for name in dict.fromkeys(asked_before)]
        return {"task": self._add(task)}

    def fork_task(
        self, *, tenant_id: str, request_id: str, source_task_id: str, checkpoints: int, owner: Owner | None = None,
        chosen: str = "",
    ) -> Answer:  # fmt: skip
        """A task that starts with the first checkpoints of another, which is not touched."""
        check(is_name(tenant_id) and is_text(request_id, 128) and is_id(source_task_id) and checkpoints in INT31)
        check(is_owner(owner))
        content = ("fork", source_task_id, checkpoints)
        if known := self._asked_before(tenant_id, request_id, content):
            if owner not in (None, known.owner):
                raise Refused("TASK_NOT_FOUND")
            return {"task": known.shown(self.now), "replayed": True}
        source = self._find(tenant_id, source_task_id, owner)
        if len(source.checkpoints) < checkpoints:
            raise Refused("CHECKPOINT_NOT_FOUND")
        self._admit(tenant_id)
        deadline_ms = source.contract.get("execution_deadline_ms", 0)
        task = Task(
            tenant_id, chosen, request_id, "", content, source.contract, source.priority, source.input, self.now, self.now,
            self.now, self._in(deadline_ms), forked_from=(source_task_id, checkpoints),
        )  # fmt: skip
        task.questions = [replace(one, asked_at=self.now) for one in source.questions if not one.token]
        for one in source.checkpoints[:checkpoints]:
            task.checkpoints.append({k: v for k, v in one.items() if k != "token"} | {"created_at": self.now})
        return {"task": self._add(task, detail=f"forked from {source_task_id}")}

    def get_task(self, *, tenant_id: str, task_id: str, owner: Owner | None = None, view: int = 0) -> Answer:
        """A task as it stands: without payloads, with its outcome (2), with its input too (3)."""
        check(0 <= view <= 3)
        task = self._find(tenant_id, task_id, owner)
        outcome = task.outcome if view >= 2 else {}
        return {"task": task.shown(self.now) | outcome | ({"input": task.input} if view == 3 else {})}

    def find_task(
        self, *, tenant_id: str, reference: str, owner: Owner | None = None, view: int = 0, chosen: str = ""
    ) -> Answer:
        """The task that was created last under a reference."""
        check(is_name(tenant_id) and is_text(reference, 128) and is_owner(owner) and 0 <= view <= 3)
        found = [task for task in self.tasks_of(tenant_id) if task.reference == reference and owner in (None, task.owner)]
        if not found:
            raise Refused("TASK_NOT_FOUND")
        last = max(task.created_at for task in found)
        check_choice(chosen in {task.task_id for task in found if task.created_at == last})
        return self.get_task(tenant_id=tenant_id, task_id=chosen, view=view)

    def watch_tasks(self, *, add: Sequence[Answer]) -> Answer:
        """What a watch of these tells at once, by their numbers; and whether it has told all that it ever will."""
        check(len(add) <= 500)
        items: list[Answer] = []
        used: set[int] = set()
        silent = 0
        for one in add:
            number, known, report = (one.get(name, 0) for name in ("number", "known_change", "known_report"))
            asked = {name: one[name] for name in ("tenant_id", "task_id", "owner", "view") if name in one}
            told: Answer = {"refused": "INVALID_INPUT"}
            try:
                check(number not in used and known >= 0 and report >= 0)
                told = self.get_task(**asked)
            except Refused as refused:
                told = {"refused": str(refused)}
            if told.get("refused") != "INVALID_INPUT":
                used.add(number)
            if "task" in told:
                task = self.tasks[one["tenant_id"], one["task_id"]]
                told |= lean(reports=[one for one in task.reports[-16:] if one["sequence"] > report])
                if task.change == known:
                    silent += task.state not in TERMINAL
                    continue
            items.append(lean(number=number) | told)
        return {"items": sorted(items, key=in_order), "ended": not silent and all(map(is_over, items))}

    def list_tasks(
        self, *, tenant_id: str, states: Sequence[str | int] = (), workflow: str = "", created_from: int | None = None,
        created_before: int | None = None, page_size: int = 0, page_token: str = "", chosen: str = "",
    ) -> Answer:  # fmt: skip
        """A tenant's tasks, newest first. What a token says is the store's own; a full page has one if there are more."""
        check(is_name(tenant_id) and all(state in STATES for state in states) and is_text(workflow, 256, blank=True))
        check(all(at is None or at in TIMES for at in (created_from, created_before)) and 0 <= page_size <= 1_000)
        check(not page_token or page_token in self.pages)
        found = [
            task
            for task in self.tasks_of(tenant_id)
            if (not states or task.state in states) and workflow in ("", task.lane[0])
            and (created_from is None or task.created_at >= created_from)
            and (created_before is None or task.created_at < created_before)
            and (not page_token or _order(task) < self.pages[page_token])
        ]  # fmt: skip
        found.sort(key=_order, reverse=True)
        shown = page(found, page_size)
        check_choice(bool(chosen) >= (len(found) > len(shown)) and bool(chosen) <= (len(shown) == (page_size or 100)))
        if chosen:
            self.pages[chosen] = _order(shown[-1])
        return lean(tasks=[task.shown(self.now) for task in shown], next_page_token=chosen)

    def list_task_history(self, *, tenant_id: str, task_id: str, from_line: int = 0, page_size: int = 0) -> Answer:
        """What happened to a task."""
        check(from_line in INT31 and 0 <= page_size <= 256)
        return lean(lines=page(self._find(tenant_id, task_id, None).lines[from_line:], page_size))

    def list_checkpoints(self, *, tenant_id: str, task_id: str, from_revision: int = 0, page_size: int = 0) -> Answer:
        """The steps that are done."""
        check(from_revision in INT31 and 0 <= page_size <= 256)
        return lean(checkpoints=page(self._find(tenant_id, task_id, None).checkpoints[from_revision:], page_size))

    def get_checkpoint(self, *, tenant_id: str, task_id: str, revision: int) -> Answer:
        """One of them."""
        check(revision in INT31)
        checkpoints = self._find(tenant_id, task_id, None).checkpoints
        if revision >= len(checkpoints):
            raise Refused("CHECKPOINT_NOT_FOUND")
        return {"checkpoint": checkpoints[revision]}

    def cancel_task(self, *, tenant_id: str, task_id: str, owner: Owner | None = None, mode: int = 0) -> Answer:
        """A wish where a worker runs it, an end otherwise or by force (2)."""
        check(0 <= mode <= 2)
        task = self._find(tenant_id, task_id, owner)
        if task.state in TERMINAL:
            return {"outcome": "ALREADY_TERMINAL"}
        if task.expires_at is not None and task.expires_at > self.now and mode < 2:
            if not task.wished:
                self._wish(task)
            return {"outcome": "REQUESTED"}
        task.wished = True
        self._end(task, "CANCELLED", worker=task.worker_id)
        return {"outcome": "CANCELLED"}

    def attach_task(self, *, tenant_id: str, task_id: str, abandon_ms: int, owner: Owner | None = None) -> Answer:
        """Somebody waits for it, for so long; 0 means that its id was handed out, and it is never abandoned."""
        check(0 <= abandon_ms < YEARS)
        task = self._find(tenant_id, task_id, owner)
        if task.state not in TERMINAL and task.abandon_at is not None:
            task.abandon_at = self._in(abandon_ms)
        return {}


def is_over(item: Answer) -> bool:
    """Whether a watch has nothing more to tell of this task."""
    return "refused" in item or item["task"]["state"] in TERMINAL


def in_order(item: Answer) -> tuple[int, str]:
    """A watch tells tasks in any order."""
    return item.get("number", 0), item.get("refused", "")


def are_answers(answers: Sequence[tuple[str, bytes]], media_type: str) -> bool:
    """Each to another question, as JSON, of at most 255 KiB."""
    return len(dict(answers)) == len(answers) and (not answers or media_type in ("", "application/json")) and all(
        is_text(key, 160) and is_payload("", data, 255 * KIB) for key, data in answers
    )  # fmt: skip


def _order(task: Task) -> tuple[int, int]:
    return task.created_at, UUID(task.task_id).int
