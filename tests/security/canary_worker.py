"""A worker that puts what it was given wherever it can: `python -m tests.security.canary_worker STORE NAME`."""

import sys
from typing import Any

from store_service.client import Context, ProtocolError, ToolError, Worker, open_traces


async def spread(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
    """Steps, progress, questions, and an end of the kind that is asked for."""
    secret = args["secret"]
    await ctx.step(f"step-{secret}", lambda: {"kept": f"checkpoint-{secret}"})
    await ctx.progress(1, 3, f"progress-{secret}")
    match args["end"]:
        case "ask":
            schema = {"type": "object", "properties": {"word": {"type": "string"}}}
            said = await ctx.ask("word", f"question-{secret}", schema)
            return {"content": [{"type": "text", "text": f"result-{said.content}"}]}
        case "tool error":
            raise ToolError(f"tool-error-{secret}")
        case "protocol error":
            raise ProtocolError(-32000, f"protocol-error-{secret}", {"of": f"data-{secret}"})
        case "fault":
            raise RuntimeError("a fault")
        case "wait":
            await ctx.wait_signal("never")
    return {"content": [{"type": "text", "text": f"result-{secret}"}], "structuredContent": {"of": f"result-{secret}"}}


if __name__ == "__main__":
    worker = Worker(sys.argv[1], worker_id=sys.argv[2], traces=open_traces("worker"))
    worker.workflow("spread", version=1)(spread)
    worker.run()
