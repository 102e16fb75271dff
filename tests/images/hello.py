"""The worker of the README, as an image: it finds its store in `STORE`, its certificates in /etc/tenure/tls if there, and a
collector of traces in `OTEL_EXPORTER_OTLP_ENDPOINT`.

It may be asked to take `seconds` for each greeting, so that there is time to do something to it.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from store_service.client import Context, Tls, Worker, open_traces

TLS = Path("/etc/tenure/tls")
tls = Tls(ca=TLS / "ca.crt", certificate=TLS / "tls.crt", key=TLS / "tls.key") if TLS.exists() else None
worker = Worker(
    os.environ["STORE"],
    tls=tls,
    name="worker",
    admin_host="0.0.0.0",
    admin_port=int(os.environ.get("ADMIN_PORT", "7235")),
    traces=open_traces("tenure-worker") if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ else None,
)


@worker.workflow("greeting", version=1)
async def greeting(ctx: Context, args: dict[str, Any]) -> str:
    """Greets everyone, one after the other."""
    parts = []
    for number, name in enumerate(args["names"], start=1):
        await ctx.progress(number, len(args["names"]), f"greeting {name}")
        await asyncio.sleep(args.get("seconds", 0))
        parts.append(await ctx.step(f"greet {name}", compose, name))
    return "\n".join(parts)


def compose(name: str) -> str:
    """One greeting."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    worker.run()
