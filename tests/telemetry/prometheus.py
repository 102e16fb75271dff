"""Prometheus itself, which scrapes services of a test and is asked what graphs and alarms ask."""

import asyncio
import contextlib
import math
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import yaml

from tests.pair import free_ports

PROGRAM: Final = shutil.which("prometheus")


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    session: aiohttp.ClientSession
    url: str

    async def ask(self, query: str) -> list[float]:
        """What a query gives now: a number for each series, those left out that are none."""
        async with self.session.get(f"{self.url}/api/v1/query", params={"query": query}) as answer:
            told = await answer.json()
        assert told["status"] == "success", (query, told)
        values = [float(one["value"][1]) for one in told["data"]["result"]]
        return [value for value in values if not math.isnan(value)]


@contextlib.asynccontextmanager
async def scraping(folder: Path, ports: Mapping[str, int]) -> AsyncIterator[Prometheus]:
    """Scrapes each job's port many times a second."""
    assert PROGRAM is not None
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in ports.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(
        PROGRAM, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(60):
                while not await _is_ready(session, url):
                    assert process.returncode is None, "Prometheus ended"
                    await asyncio.sleep(0.1)
            yield Prometheus(session, url)
    finally:
        process.terminate()
        await process.wait()


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/-/ready") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
