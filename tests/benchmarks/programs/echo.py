"""The bare aiohttp server that the bridge is held against: it reads the body and answers so many bytes.

python -m tests.benchmarks.programs.echo PORT BYTES
"""

import sys

import uvloop
from aiohttp import web


def main() -> None:
    """Serves until it is ended."""
    port, size = int(sys.argv[1]), int(sys.argv[2])
    answer = b"x" * size

    async def echo(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=8 * 2**20)
    app.router.add_post("/mcp", echo)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main()
