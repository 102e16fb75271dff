"""The worker of the README, as an image: it finds its store in `STORE`, and its certificates in /etc/tenure/tls if there."""

import os
from pathlib import Path
from typing import Any

from store_service.client import Context, Tls, Worker

TLS = Path("/etc/tenure/tls")
tls = Tls(ca=TLS / "ca.crt", certificate=TLS / "tls.crt", key=TLS / "tls.key") if TLS.exists() else None
worker = Worker(
    os.environ["STORE"], tls=tls, name="worker", admin_host="0.0.0.0", admin_port=int(os.environ.get("ADMIN_PORT", "7235"))
)


@worker.workflow("greeting", version=1)
async def greeting(ctx: Context, args: dict[str, Any]) -> str:
    """Greets everyone, one after the other."""
    parts = []
    for number, name in enumerate(args["names"], start=1):
        await ctx.progress(number, len(args["names"]), f"greeting {name}")
        parts.append(await ctx.step(f"greet {name}", compose, name))
    return "\n".join(parts)


def compose(name: str) -> str:
    """One greeting."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    worker.run()
