"""What tasks wait for: suspensions, answers, signals. Source: store contract, section 8."""

from collections.abc import Sequence

from tests.model.contract.checks import (
    JSON,
    KIB,
    MIB,
    MS,
    YEARS,
    Answer,
    Owner,
    Refused,
    check,
    check_choice,
    is_id,
    is_name,
    is_owner,
    is_payload,
    is_text,
    lean,
    page,
    payload,
)  # fmt: skip # isort: skip
from tests.model.contract.rows import SIGNAL_STATES, TERMINAL, Lease, Signal, Wait
from tests.model.contract.state import State
from tests.model.contract.tasks import are_answers


class Waits(State):
    """Suspensions and what ends them."""

    def suspend_task(
        self, *, lease: Lease, step: str, timer_ms: int | None = None, signal: str | None = None,
        questions: Sequence[tuple[str, bytes]] | None = None, timeout_ms: int = 0, params_type: str = "",
        fitting: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        """Until the time, a signal, or answers. What came before the wait ends it at once; a wished end ends the task."""
        kind = "TIMER" if timer_ms is not None else "SIGNAL" if signal is not None else "INPUT"
        delay_ms = timeout_ms if timer_ms is None else timer_ms
        check(is_text(step, 256) and (timer_ms is not None) <= delay_ms < YEARS)
        check(kind != "SIGNAL" or is_name(signal or ""))
        asked = questions or ()
        check(kind != "INPUT" or (1 <= len(asked) <= 16 and len(dict(asked)) == len(asked) and params_type in ("", JSON)))
        check(all(is_text(name, 128) and "#" not in name and is_payload("", one, 64 * KIB) for name, one in asked))
        check(len(fitting) <= 16 and all(is_text(key, 160) for key in fitting))
        content = ("suspend", step, timer_ms, signal, tuple(asked), timeout_ms, tuple(dict.fromkeys(fitting)))
        task = self._finishing(lease, content)
        if task is None:
            return self._asked(lease)
        if len(task.questions) + len(asked) > self.limits.questions:
            raise Refused("INPUT_LIMIT")
        self._finished(task, lease, content)
        task.ask(asked, self.now, fitting)
        if task.wished:
            self._end(task, "CANCELLED", worker=lease.worker_id, detail=step)
            return self._asked(lease)
        task.wait = Wait(kind, step, task.token, self._in(delay_ms), signal)
        task.state, task.worker_id, task.expires_at = "WAITING", "", None
        self._tell(task, "SUSPENDED", lease.worker_id, detail=step)
        pending = [
            (one.accepted_at, signal_id)
            for (tenant_id, signal_id), one in self.signals.items()
            if (tenant_id, one.task_id, one.name, one.state) == (*task.key, signal, "PENDING")
        ]
        if pending:
            _, signal_id = min(pending)
            self.signals[task.tenant_id, signal_id].state = "CONSUMED"
            self._wake(task, "SIGNAL", self.now, signal_id)
        elif kind == "INPUT" and all(one.state != "OPEN" for one in task.questions):
            self._wake(task, "INPUT", self.now)
        return self._asked(lease)

    def answer_inputs(
        self, *, tenant_id: str, task_id: str, answers: Sequence[tuple[str, bytes]], owner: Owner | None = None,
        answered_by: Owner | None = None, answer_type: str = "",
    ) -> Answer:  # fmt: skip
        """For each key whether it answered an open question. With the last of them the task goes on."""
        check(1 <= len(answers) <= 100 and are_answers(answers, answer_type) and is_owner(answered_by))
        task = self._find(tenant_id, task_id, owner)
        given, wait = dict(answers), task.wait
        waits = task.state == "WAITING" and wait is not None and wait.kind == "INPUT" and not self._is_past(wait.until)
        accepted = {one.key for one in task.questions if waits and one.state == "OPEN" and one.key in given}
        for question in task.questions:
            if question.key in accepted:
                question.state, question.response = "ANSWERED", given[question.key]
        if accepted and any(one.state == "OPEN" for one in task.questions):
            self._changed(task)
        elif accepted:
            self._wake(task, "INPUT", self.now)
        return {"outcomes": ["ACCEPTED" if key in accepted else "IGNORED" for key in given]}

    def publish_signal(
        self, *, tenant_id: str, signal_id: str, task_id: str, name: str, data: bytes, media_type: str = "",
        owner: Owner | None = None,
    ) -> Answer:  # fmt: skip
        """Idempotent by id and content. Before the wait's end the signal wins, at it the timeout does."""
        check(is_text(signal_id, 128) and is_name(name) and is_payload(media_type, data, MIB))
        task = self._find(tenant_id, task_id, owner)
        sent = payload(media_type, data)
        if known := self.signals.get((tenant_id, signal_id)):
            if (known.task_id, known.name, known.payload) != (task_id, name, sent):
                raise Refused("SIGNAL_ID_CONFLICT")
            return {"state": known.state, "replayed": True}
        state, wait = "PENDING", task.wait
        if task.state in TERMINAL:
            state = "DEAD_LETTER"
        elif task.state == "WAITING" and wait is not None and wait.signal_name == name:
            state = "DEAD_LETTER" if self._is_past(wait.until) else "CONSUMED"
        waiting = [key for key, one in self.signals.items() if (key[0], one.task_id, one.state) == (*task.key, "PENDING")]
        if state == "PENDING" and len(waiting) >= self.limits.signals:
            raise Refused("SIGNAL_LIMIT")
        self.signals[tenant_id, signal_id] = Signal(task_id, name, sent, self.now, state)
        if state == "CONSUMED":
            self._wake(task, "SIGNAL", self.now, signal_id)
        return {"state": state}

    def get_signal(self, *, tenant_id: str, signal_id: str) -> Answer:
        """What became of a signal."""
        check(is_name(tenant_id) and is_text(signal_id, 128))
        signal = self.signals.get((tenant_id, signal_id))
        if signal is None:
            raise Refused("SIGNAL_NOT_FOUND")
        return signal.shown()

    def list_signals(
        self, *, tenant_id: str, states: Sequence[str | int] = (), task_id: str = "", page_size: int = 0,
        page_token: str = "", chosen: str = "",
    ) -> Answer:  # fmt: skip
        """A tenant's signals, newest first. What a token says is the store's own; a full page has one."""
        check(is_name(tenant_id) and all(state in SIGNAL_STATES for state in states) and 0 <= page_size <= 1_000)
        check((not task_id or is_id(task_id)) and (not page_token or page_token in self.signal_pages))
        found = [
            (one.accepted_at, signal_id, one)
            for (its_tenant, signal_id), one in self.signals.items()
            if its_tenant == tenant_id and (not states or one.state in states) and task_id in ("", one.task_id)
            and (not page_token or (one.accepted_at, signal_id) < self.signal_pages[page_token])
        ]  # fmt: skip
        shown = page(sorted(found, reverse=True), page_size)
        check_choice(bool(chosen) == (len(shown) == (page_size or 100)))
        if chosen:
            self.signal_pages[chosen] = shown[-1][:2]
        return lean(signals=[one.shown() | {"signal_id": signal_id} for _, signal_id, one in shown], next_page_token=chosen)

    def compact_signals(self, *, tenant_id: str, older_than_ms: int, limit: int = 0, left: Sequence[str] = ()) -> Answer:
        """Signals that are over are forgotten, oldest first, but for one that woke a task that lives or may again."""
        check(is_name(tenant_id) and 1 <= older_than_ms < 10 * YEARS and 0 <= limit <= 1_000)
        over = TERMINAL - {"FAILED"}  # which may be redriven
        live = {one.wait.signal_id for one in self.tasks_of(tenant_id) if one.wait and one.state not in over}
        due = {
            key[1]: one.accepted_at
            for key, one in self.signals.items()
            if key[0] == tenant_id and one.state != "PENDING" and one.accepted_at <= self.now - older_than_ms * MS
            and key[1] not in live
        }  # fmt: skip
        count = min(limit or 100, len(due))
        gone = sorted(due, key=lambda signal_id: (due[signal_id], signal_id in left))[:count]
        for signal_id in gone:
            del self.signals[tenant_id, signal_id]
        return lean(compacted=len(gone))

    def _asked(self, lease: Lease) -> Answer:
        task = self.tasks[lease.tenant_id, lease.task_id]
        return lean(keys=[one.key for one in task.questions if one.token == lease.token])
