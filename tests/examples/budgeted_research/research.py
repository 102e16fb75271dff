"""Work under a budget: an answer from several sources, each read by a language model that costs money.

The workflow declares what one task may use in its life. Where an operator has given the tenant a budget, that much of it is
held before the code begins, so that tasks which run at once never use more than there is; what was not used is given back at
each end and each wait. Where there is none, the limits still end a task that goes astray.

Run it beside a store: `python -m tests.examples.budgeted_research.research 127.0.0.1:7233`.
"""

import sys
from typing import Any, NamedTuple, Protocol

from store_service.client import BudgetAmounts, Context, Worker

LIMITS = BudgetAmounts(tokens=20_000, cost_micro_usd=60_000)
LEAST_TOKENS = 2_000


class Reply(NamedTuple):
    """What a model said, and what that took."""

    text: str
    tokens: int
    cost_micro_usd: int


class Model(Protocol):
    """A language model."""

    async def ask(self, prompt: str, *, max_tokens: int) -> Reply:
        """Asks it. Its reply takes no more than `max_tokens`."""


class Research:
    """The workflow, with the model that it asks."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def research(self, ctx: Context, arguments: dict[str, Any]) -> dict[str, Any]:
        """Reads as many sources as the task's tokens allow, and says which were left out."""
        notes: dict[str, str] = {}
        sources: list[str] = arguments["sources"]
        for source in sources:
            if (ctx.budget_left.tokens or 0) < 2 * LEAST_TOKENS:  # what the summary takes is kept
                break
            notes[source] = await ctx.step(f"read {source}", self._ask, ctx, f"What does {source} say?")
        text = await ctx.step("sum up", self._ask, ctx, f"Sum up: {notes}")
        return {"text": text, "left_out": sources[len(notes) :]}

    async def _ask(self, ctx: Context, prompt: str) -> str:
        reply = await self._model.ask(prompt, max_tokens=min(LEAST_TOKENS, ctx.budget_left.tokens or 0))
        ctx.use(tokens=reply.tokens, cost_micro_usd=reply.cost_micro_usd)
        return reply.text


class PaperModel:
    """A model that has little to say."""

    async def ask(self, prompt: str, *, max_tokens: int) -> Reply:
        """See Model."""
        return Reply(f"about {prompt!r}: nothing", min(len(prompt), max_tokens), 100)


def main(store: str) -> None:
    """Runs a worker until it is told to stop."""
    worker = Worker(store)
    worker.workflow("research", limits=LIMITS)(Research(PaperModel()).research)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
