"""P12: two bridges against one, two stores against one, on the same Postgres."""

import asyncio

from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.load import drive
from tests.benchmarks.plan import Plan
from tests.benchmarks.side_by_side import COMPLETED, IN_FLIGHT, polling
from tests.benchmarks.workers import LEAST, drain
from tests.benchmarks.world import World


async def p12(world: World, plan: Plan) -> list[Figure]:
    """Right answers, and no fewer of them, though two cores are shared by twice as many processes."""
    with plan.part("bridges"):
        bridges = await _bridges(world, plan)
    with plan.part("stores"):
        return [bridges, await _stores(world, plan)]


async def _bridges(world: World, plan: Plan) -> Figure:
    """Polls of 1 KB, all at one bridge or half of them at each; every answer is looked at."""
    figure = Figure("P12", "tasks/get of 1 KB, two bridges", "one bridge", "itself", Target("at least", 0.9))
    one = await polling(world, size=1_024, count=plan.size(1_000), workflow="p12")
    url, second = await world.start_bridge("bridge-2", world.pair.store_address)
    used: dict[str, list[dict[str, float]]] = {"theirs": [], "ours": []}
    meter = await world.meter(bridge_2=second)
    for number in range(plan.rounds + 1):
        for name, urls in (("theirs", [one.url]), ("ours", [one.url, url])):
            meter.start()
            loads = await asyncio.gather(
                *(
                    drive(
                        each, one.requests(), connections=IN_FLIGHT // len(urls),
                        seconds=plan.seconds if number else min(plan.seconds, 1.0), is_right=lambda answer: COMPLETED in answer,
                    )
                    for each in urls
                )
            )  # fmt: skip
            if number:
                used[name].append(meter.stop(sum(load.operations for load in loads)))
                setattr(figure, name, [*getattr(figure, name), sum(load.rate for load in loads)])
        plan.tell(f"P12 round {number}: two bridges {figure.ours[-1:]} /s, one {figure.theirs[-1:]} /s")
    figure.cpu = plan.median_of(used["ours"]) | {f"{name}, one": us for name, us in plan.median_of(used["theirs"]).items()}
    return figure


async def _stores(world: World, plan: Plan) -> Figure:
    """No-op tasks run by two workers, at one store or each at its own; all end."""
    figure = Figure("P12", "no-op tasks run by two workers, two stores", "one store", "itself", Target("at least", 0.9))
    address, second = await world.start_store("store-2", world.dsn)
    one, two = [world.pair.store_address] * 2, [world.pair.store_address, address]
    rate = 0.0 if plan.is_quick else (await drain(world, LEAST, stores=one))[0]
    used: dict[str, list[dict[str, float]]] = {"theirs": [], "ours": []}
    for number in range(plan.dear_rounds):
        for name, stores in (("theirs", one), ("ours", two)):
            rate, cpu = await drain(world, plan.tasks(rate, least=LEAST), stores=stores, store_2=second)
            used[name].append(cpu)
            setattr(figure, name, [*getattr(figure, name), rate])
        plan.tell(f"P12 round {number + 1}: two stores {figure.ours[-1]:,.0f} /s, one {figure.theirs[-1]:,.0f} /s")
    figure.cpu = plan.median_of(used["ours"]) | {f"{name}, one": us for name, us in plan.median_of(used["theirs"]).items()}
    return figure
