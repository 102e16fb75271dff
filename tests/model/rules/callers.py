"""What callers say."""

from collections.abc import Callable

from hypothesis import strategies as st

from tests.model import arguments as some
from tests.model.choices import Choices, Draw, Fields, pick
from tests.model.contract.rows import SIGNAL_STATES


class Callers(Choices):
    """Tasks, signals and answers; and whatever can be read."""

    def create(self, draw: Draw) -> None:
        self._say(draw, "create_task", **self._new_task(draw))

    def fork(self, draw: Draw) -> None:
        far = [key for key, task in self.model.tasks.items() if task.checkpoints][-2:]
        tenant_id, task_id = pick(draw, [*far, self._any_task(draw)])
        has = len(self.model.tasks[tenant_id, task_id].checkpoints) if (tenant_id, task_id) in self.model.tasks else 0
        request_id = pick(draw, [self._new_id(), self._new_id(), draw(some.request_ids)])
        self._say(
            draw, "fork_task", tenant_id=tenant_id, request_id=request_id, source_task_id=task_id,
            checkpoints=draw(st.integers(0, has + 1)), **self._owner(draw, tenant_id, task_id),
        )  # fmt: skip

    def publish(self, draw: Draw) -> None:
        key = self._waiting_task(draw, "signal")
        self._say(draw, "publish_signal", **self._signal(draw, self.model.tasks.get(key), key), **self._owner(draw, *key))

    def answer(self, draw: Draw) -> None:
        tenant_id, task_id = self._waiting_task(draw, "input")
        task = self.model.tasks.get((tenant_id, task_id))
        open_ = [one.key for one in task.questions if one.state == "OPEN"] if task else []
        every = st.fixed_dictionaries(dict.fromkeys(open_ or ["a"], some.payloads)).map(lambda given: tuple(given.items()))
        self._say(
            draw, "answer_inputs", tenant_id=tenant_id, task_id=task_id,
            answers=draw(pick(draw, [some.answers, every, every])),
            answered_by=pick(draw, [None, some.OWNERS[1]]), **self._owner(draw, tenant_id, task_id),
        )  # fmt: skip

    def cancel(self, draw: Draw) -> None:
        mode = pick(draw, [0, 1, 1, 2])
        tenant_id, task_id = self._any_task(draw)
        owner = self._owner(draw, tenant_id, task_id)
        self._say(draw, "cancel_task", tenant_id=tenant_id, task_id=task_id, mode=mode, **owner)

    def attach(self, draw: Draw) -> None:
        abandon_ms = draw(some.deadlines_ms)
        tenant_id, task_id = self._any_task(draw)
        owner = self._owner(draw, tenant_id, task_id)
        self._say(draw, "attach_task", tenant_id=tenant_id, task_id=task_id, abandon_ms=abandon_ms, **owner)

    def watch(self, draw: Draw) -> None:
        """What stands now; or one task, and what happens to it next."""
        live = [key for key, task in self.model.tasks.items() if task.ended_at is None]
        if not live or pick(draw, (True, False)):
            return self.pair.watch(add=self._watched(draw))
        key = pick(draw, live)
        ref = {"tenant_id": key[0], "task_id": key[1]}
        lease = next((one for one in self._holding() if one[:2] == key), None)
        happens: dict[str, Fields] = {
            "cancel_task": ref | {"mode": pick(draw, [1, 2])},
            "attach_task": ref | {"abandon_ms": 0},
            "publish_signal": self._signal(draw, self.model.tasks[key], key),
        }
        if lease:
            happens |= {
                "report_progress": {"lease": lease, "value": 1.0}, "heartbeat_task": {"lease": lease, "lease_ms": 1_000},
                "complete_task": {"lease": lease, "data": b"1"}, "release_task": {"lease": lease, "delay_ms": 1},
            }  # fmt: skip
        name = pick(draw, sorted(happens))
        self.pair.say_watched(key, name, **happens[name])
        return None

    def _watched(self, draw: Draw) -> list[Fields]:
        """Any tasks under numbers that are mostly their own; of some of them the watcher knows something."""
        add: list[Fields] = []
        for number in range(draw(st.integers(1, 4))):
            key = self._any_task(draw)
            fields = {
                "number": pick(draw, (number, number, 1)),
                "tenant_id": key[0],
                "task_id": key[1],
                "view": pick(draw, (0, 1, 2, 3)),
            }
            task = self.model.tasks.get(key)
            if task and pick(draw, (True, False)):
                fields |= {"known_change": pick(draw, (task.change, task.change - 1)), "known_report": pick(draw, (0, 1))}
            add.append(self._perhaps_spoil(draw, "watch_tasks", fields | self._owner(draw, *key)))
        return add * pick(draw, (1,) * 30 + (501,))

    def read(self, draw: Draw) -> None:
        tenant_id, task_id = self._any_task(draw)
        named = {"tenant_id": tenant_id, "task_id": task_id}
        first, size = draw(st.integers(0, 3)), draw(some.page_sizes)
        any_tenant = pick(draw, (*some.TENANTS, "nobody"))
        reads: dict[str, Callable[[], Fields]] = {
            "get_task": lambda: named | {"view": draw(st.integers(0, 3))} | self._owner(draw, tenant_id, task_id),
            "find_task": lambda: {"tenant_id": any_tenant, "reference": "case 7"} | self._owner(draw, tenant_id, task_id),
            "get_checkpoint": lambda: named | {"revision": first},
            "list_checkpoints": lambda: named | {"from_revision": first, "page_size": size},
            "list_task_history": lambda: named | {"from_line": first, "page_size": size},
            "get_signal": lambda: {"tenant_id": tenant_id, "signal_id": draw(some.signal_ids)},
            "get_tombstone": lambda: named,
            "list_tombstones": lambda: {"tenant_id": any_tenant, "after_cursor": first, "page_size": size},
            "get_tenant": lambda: {"tenant_id": any_tenant},
            "get_budget": lambda: {"tenant_id": any_tenant},
            "list_budget_facts": lambda: {"tenant_id": any_tenant, "after_cursor": first, "page_size": size},
            "load_input": lambda: {"lease": self._any_lease(draw)},
            "load_early_answers": lambda: {"lease": self._any_lease(draw)},
            "load_checkpoints": lambda: {"lease": self._any_lease(draw), "from_revision": first, "page_size": size},
            "watch_leases": lambda: {"worker_id": draw(some.workers)},
        }
        name = pick(draw, sorted(reads))
        self._say(draw, name, **reads[name]())

    def list(self, draw: Draw) -> None:
        """A list, page after page as far as one cares."""
        states = draw(st.sets(st.sampled_from(["QUEUED", "LEASED", "WAITING", "COMPLETED"]), max_size=2))
        times = st.sampled_from([None, None, self.model.now, self.model.now - 1, self.model.now - 1_000_000])
        fields: Fields = {
            "tenant_id": draw(some.tenants), "states": tuple(sorted(states)), "workflow": pick(draw, ["", "report"]),
            "created_from": draw(times), "created_before": draw(times), "page_size": draw(some.page_sizes),
        }  # fmt: skip
        name = pick(draw, ("list_tasks", "list_signals"))
        if name == "list_signals":
            of = pick(draw, (*(one.task_id for one in list(self.model.signals.values())[-3:]), "", "", some.UNKNOWN))
            states = draw(st.sets(st.sampled_from(SIGNAL_STATES), max_size=2))
            size = draw(some.page_sizes)
            fields = {"tenant_id": draw(some.tenants), "states": tuple(sorted(states)), "task_id": of, "page_size": size}
        fields = self._perhaps_spoil(draw, name, fields)
        for _ in range(draw(st.integers(1, 3))):
            answer = self.pair.say(name, **fields)
            if not isinstance(answer, dict) or "next_page_token" not in answer:
                break
            fields |= {"page_token": answer["next_page_token"]}
