"""A store and the model of it: they are told the same, step by step; what they answer and what they are then is compared."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tests.model import arguments as some
from tests.model import calls
from tests.model.contract.checks import Answer, Refused
from tests.model.contract.ledger import replay
from tests.model.contract.model import Model
from tests.model.contract.rows import CleanupLease, Lease
from tests.model.coverage import Seen
from tests.model.operations import BATCHES, CODES, read_operations
from tests.model.picture import draw_picture
from tests.model.plain import Outcome
from tests.model.real import LIMITS, START, Real


class Pair:
    """A store and the model of it, told the same."""

    def __init__(self, real: Real, seen: Seen | None = None) -> None:
        real.forget()
        self.real = real
        self.model = Model(START, LIMITS)
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.granted: list[Lease] = []
        self.cleanups: list[tuple[CleanupLease, str]] = []
        self.dice = 0.5
        self.agreed = True
        self.seen: Seen = Counter() if seen is None else seen
        self._messages = read_operations()

    def say(self, name: str, /, **fields: Any) -> Any:
        """One operation on both. Returns the answer, or the reason of the refusal."""
        self.said.append((name, fields))
        return self._agree(name, fields, self.real.call(name, fields))

    def say_unheard(self, name: str, /, **fields: Any) -> Any:
        """One operation whose answer is lost on the way to the store, and so it is said again."""
        self.said.append((f"{name} unheard", fields))
        first, lost = self.real.lose_answer(name, fields)
        if not lost:
            return self._agree(name, fields, first)
        self.seen[name, str(first[1])] += 1
        self._compare(name, first, ("UNKNOWN", "OUTCOME_UNKNOWN"))
        answer = self.real.call(name, fields)
        self._expect(name, fields, answer)
        return self._agree(name, fields, answer)

    def watch(self, **fields: Any) -> None:
        """What a watch tells at once."""
        self.said.append(("watch_tasks", fields))
        told = self._ask("watch_tasks", fields, {})
        first: Answer = told[1] if told[0] == "OK" else {"items": [{}], "ended": False}
        seen = self.real.watch(fields, len(first["items"]), ends=first["ended"])
        self.seen["watch_tasks", _outcome(*seen)] += 1
        self._compare("watch_tasks", seen, told)

    def say_watched(self, watched: tuple[str, str], name: str, /, **fields: Any) -> Any:
        """One operation while a task is watched: the watch tells of it if it changes the task, and of the task's end."""
        task = self.model.tasks[watched]
        asked = {"tenant_id": watched[0], "task_id": watched[1], "view": 3, "number": 7}
        with self.real.watching({"add": [asked]}) as told:
            self._compare("watch_tasks", ("OK", next(told)), ("OK", self.model.watch_tasks(add=[asked])["items"][0]))
            known, reports, outcome = task.change, len(task.reports), self.say(name, **fields)
            self.said[-1] = (f"{name} watched {watched}", fields)
            if task.change != known:
                change = self.model.watch_tasks(add=[asked | {"known_change": known, "known_report": reports}])
                self._compare("watch_tasks", ("OK", next(told)), ("OK", change["items"][0]))
                assert not change["ended"] or not list(told), self.story()
                self.seen["watch_tasks", "OK then " + ("the end" if change["ended"] else "a change")] += 1
        return outcome

    def say_batch(self, method: str, items: Sequence[dict[str, Any]], claim: dict[str, Any] | None = None) -> None:
        """Many of one operation in one call, and perhaps a claim after them."""
        name, kind = BATCHES[method].one, BATCHES[method].kind
        made: dict[str, Any] = {"items": [getattr(calls, name)(**fields) for fields in items]}
        if claim is not None:
            made["lease"] = calls.lease_tasks(**claim)
        self.said.append((method, {"items": items, "claim": claim}))
        code, answer = self.real.send(method, self._messages[method].request(**made))
        if not items or code != "OK":
            self.seen[method, _outcome(code, answer)] += 1
            wrong = self._ask("lease_tasks", claim, {}) if items and claim else ("INVALID_ARGUMENT", "INVALID_INPUT")
            return self._compare(method, (code, answer), wrong)
        expected = []
        for fields, item in zip(items, answer["items"], strict=True):
            seen = ("REFUSED", item["refused"]) if "refused" in item else ("OK", item[kind] if name != "get_task" else item)
            code, value = self._expect(name, fields, seen, method)
            if code != "OK" and {value, item.get("refused")} == {"CREATE_RATE", "OUTSTANDING_LIMIT"}:
                value = seen[1]  # a batch that is beyond both may name either
            expected.append({"refused": value} if code != "OK" else value if name == "get_task" else {kind: value})
        whole: Answer = {"items": expected}
        if claim is not None:
            whole |= self._expect("lease_tasks", claim, ("OK", answer))[1]
            self._keep(("OK", answer))
        self._compare(method, ("OK", answer), ("OK", whole))
        return self.look()

    def advance(self, us: int) -> None:
        """It gets later. Nothing else happens."""
        self.said.append(("advance", {"us": us}))
        self.model.now += us
        self.real.set_clock(self.model.now, self.dice)

    def throw(self, dice: float) -> None:
        """What the store's dice show from now on."""
        if dice != self.dice:
            self.said.append(("throw", {"dice": dice}))
            self.dice = dice
            self.real.set_clock(self.model.now, dice)

    def bump_epoch(self) -> None:
        """The database was restored."""
        self.said.append(("bump_epoch", {}))
        self.model.epoch += 1
        self.real.execute("UPDATE tenure.epoch SET epoch = epoch + 1")

    def meter(self) -> None:
        """The store's loop counts the facts of budgets."""
        self.said.append(("meter", {}))
        self.model.meter_facts()
        self.real.meter()

    def cut(self) -> None:
        """The store lost its connections to the database."""
        self.said.append(("cut", {}))
        self.real.cut()
        self.look()

    def crash(self) -> None:
        """The store died, and another one came."""
        self.said.append(("crash", {}))
        self.real.crash()
        self.look()

    def look(self) -> None:
        """What was touched looks the same from outside, everything stands where it should, and nothing is wrong."""
        touched = sorted(self.model.touched)
        expected = draw_picture(self.model, touched)
        leased = {name: count for name, _, count, _ in expected["tenants"]}
        strict = [name for name, tenant in self.model.tenants.items() if leased[name] <= tenant.max_leased]
        picture = self.real.look([task_id for _, task_id in touched], strict)
        for part, told in expected.items():
            if picture[part] != told:
                self._compare(part, ("OK", picture[part]), ("OK", told))
        if touched:
            reads: list[dict[str, Any]] = [
                {"tenant_id": tenant_id, "task_id": task_id, "view": 3} for tenant_id, task_id in touched
            ]
            message = self._messages["get_tasks"].request(items=[calls.get_task(**fields) for fields in reads])
            told = [self._ask("get_task", fields, {}) for fields in reads]
            items = [one if code == "OK" else {"refused": one} for code, one in told]
            self._compare("get_tasks", self.real.send("get_tasks", message), ("OK", {"items": items}))
        self.model.touched.clear()

    def look_everywhere(self) -> None:
        """Whatever can be read is the same, of lists that pictures compare the last ones; and facts add up to the ledgers."""
        self.model.touched |= self.model.tasks.keys()
        self.look()
        for tenant_id, task_id in list(self.model.tasks)[-2:]:
            for name in ("list_task_history", "list_checkpoints"):
                self._read(name, tenant_id=tenant_id, task_id=task_id, page_size=256)
        for tenant_id, signal_id in list(self.model.signals)[-2:]:
            self._read("get_signal", tenant_id=tenant_id, signal_id=signal_id)
        for tenant_id in some.TENANTS:
            for name in (
                "get_tenant",
                "list_tasks",
                "list_signals",
                "list_holds",
                "list_purges",
                "get_retention",
                "get_budget",
            ):
                self._read(name, tenant_id=tenant_id)
            self._read("list_tombstones", tenant_id=tenant_id, with_history=True)
            facts = self._read("list_budget_facts", tenant_id=tenant_id, page_size=1_000).get("facts", [])
            if facts:  # those that are left are the ledger
                last = facts[-1]["budget"]
                amounts = {name: last.get(name, {}) for name in ("committed", "reserved")}
                self._compare("facts", ("OK", replay(facts)), ("OK", amounts))
            self.seen.update(("budget", " ".join(filter(None, (one["kind"], one.get("forfeit_cause"))))) for one in facts)
        for line in (line for task in self.model.tasks.values() for line in task.lines):
            why = line["detail"] if line["event"] == "FAILED" and line["detail"].isupper() else ""
            self.seen["history", f"{line['event']} {why}".strip()] += 1

    def story(self) -> str:
        """What was said so far, as a regression test would say it."""
        return "\n".join(f"pair.{call}" for call in map(_told, self.said))

    def _read(self, name: str, **fields: Any) -> Answer:
        answer = self.real.call(name, fields)
        self._compare(name, answer, self._expect(name, fields, answer))
        return answer[1] if answer[0] == "OK" else {}

    def _agree(self, name: str, fields: dict[str, Any], answer: Outcome) -> Any:
        self._compare(name, answer, self._expect(name, fields, answer))
        self._keep(answer)
        if name == "claim_cleanup" and answer[0] == "OK" and "lease" in answer[1]:
            self.cleanups.append((CleanupLease(**answer[1]["lease"]), fields["principal"]))
        self.look()
        return answer[1]

    def _expect(self, name: str, fields: dict[str, Any], seen: Outcome, method: str = "") -> Outcome:
        """What the model says, told what the store chose. The store's own outcome is counted."""
        code, answer = seen
        self.seen[method or name, _outcome(code, answer)] += 1
        choices: dict[str, Any] = {}
        match name:
            case "create_task" | "fork_task":
                choices["chosen"] = answer["task"]["task_id"] if code == "OK" else some.UNKNOWN
            case "fail_task":
                choices["chosen"] = answer.get("retry_at", self.model.now) if code == "OK" else self.model.now
            case "find_task" if code == "OK":
                choices["chosen"] = answer["task"]["task_id"]
            case "redrive_tasks":
                choices["forgotten"] = code == "OK" and not answer.get("replayed", False)
            case "list_tasks" | "list_signals" if code == "OK":
                choices["chosen"] = answer.get("next_page_token", "")
            case "compact_signals" if code == "OK" and "compacted" in answer:
                choices["left"] = self.real.signals(fields["tenant_id"])
            case "lease_tasks" if code == "OK":
                tasks = answer.get("tasks", ())
                tenants = {task["lease"]["tenant_id"] for task in tasks}
                choices["served"] = [one for one in self.real.turns() if one in tenants] if len(tenants) > 1 else ()
                for kind in ("signal", "input", "timer", "timeout"):
                    self.seen[name, f"OK woken by {kind}"] += sum(kind in one.get("wake", {}) for one in tasks)
                self.seen[name, "OK left out"] += sum(one.get("input_left_out", False) for one in tasks)
                choices["left_out"] = [one["lease"]["task_id"] for one in tasks if one.get("input_left_out")]
                holding = sum(task.holds is not None for task in self.model.tasks.values())
                choices["forfeited"] = self.real.forfeited() if holding > 1 else ()
        return self._ask(name, fields, choices)

    def _ask(self, name: str, fields: dict[str, Any], choices: dict[str, Any]) -> Outcome:
        try:
            return "OK", getattr(self.model, name)(**fields, **choices)
        except Refused as refused:
            return CODES[str(refused)], str(refused)

    def _compare(self, name: str, seen: Outcome, expected: Outcome) -> None:
        self.agreed = self.agreed and seen == expected
        assert seen == expected, f"{name}: the store says\n  {seen}\nand the model\n  {expected}\nafter\n{self.story()}"

    def _keep(self, answer: Outcome) -> None:
        if answer[0] == "OK":
            self.granted += [Lease(**{"epoch": 0} | task["lease"]) for task in answer[1].get("tasks", ()) if "lease" in task]


_TOLD = ("replayed", "adopted", "lease", "tombstones", "claim_token", "retry_at", "tasks", "keys", "next_page_token")


def _outcome(code: str, answer: Any) -> str:
    """What an answer came to, in few words."""
    if code != "OK":
        return str(answer)
    told = [str(answer[name]) for name in ("outcome", "state") if name in answer]
    told += sorted({*answer.get("outcomes", ()), *(one["outcome"] for one in answer.get("items", ()) if "outcome" in one)})
    told += [
        name
        for name in ("replayed", "adopted", "lease", "tombstones", "retry_at", "tasks", "signals", "keys", "next_page_token")
        if name in answer
    ]
    return " ".join(["OK", *told])


def _told(call: tuple[str, dict[str, Any]]) -> str:
    name, fields = call
    name, _, how = name.partition(" ")
    if "items" in fields:
        return f"say_batch({name!r}, {_code(fields['items'])}, {_code(fields['claim'])})"
    told = ", ".join(f"{field}={_code(value)}" for field, value in fields.items())
    if name in ("advance", "throw", "bump_epoch", "meter", "cut", "crash", "watch_tasks"):
        return f"{name.removesuffix('_tasks')}({told})"
    if how.startswith("watched"):
        return f"say_watched({how.removeprefix('watched ')}, {name!r}, {told})"
    return f"{'say_unheard' if how else 'say'}({name!r}, {told})"


def _code(value: Any) -> str:
    """`repr`, in which long runs of one character are short."""
    if type(value) is dict:
        return "{" + ", ".join(f"{name!r}: {_code(one)}" for name, one in value.items()) + "}"
    if type(value) in (list, tuple):
        return "(" + "".join(f"{_code(one)}, " for one in value) + ")"
    if isinstance(value, bytes | str) and len(value) > 40:
        runs = ((key, len(list(run))) for key, run in groupby(value[n : n + 1] for n in range(len(value))))
        return "(" + " + ".join(f"{key!r} * {count}" if count > 1 else repr(key) for key, count in runs) + ")"
    return repr(value)
