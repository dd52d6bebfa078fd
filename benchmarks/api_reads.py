"""Server time of the API's reads over a large journal: 2,000 nodes, 5,000 jobs, 100,000 findings in SQLite.

Run by hand: `.venv/bin/python benchmarks/api_reads.py`. One client asks each route 60 times, one request at a time, on
a kept connection; a second one ingests 200 findings a second meanwhile. Prints median and p95 in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import httpx
import msgspec
from filled import FINDINGS, RATE, filled_controller, finding

from holdfast.api import ApiServer
from holdfast.controller import Controller

ROUNDS = 60

ROUTES = (
    "/v1/jobs?limit=100", "/v1/jobs?limit=100&state=watching&user=u3", "/v1/jobs/17", "/v1/nodes?limit=100",
    "/v1/nodes/n0017", "/v1/incidents?limit=100", "/v1/orders?limit=100", "/v1/findings?node=n0017",
    "/v1/findings?limit=100", "/v1/events?after=1000&limit=100", "/v1/events?node=n0017&limit=100", "/v1/audit",
    "/v1/brakes", "/v1/drills", "/v1/policies", "/healthz", "/metrics",
)  # fmt: skip
WHOLE = ("/v1/jobs", "/v1/nodes", "/v1/state")


async def noise(controller: Controller) -> None:
    number = FINDINGS
    while True:
        for _ in range(RATE // 10):
            number += 1
            _ = controller.submit(finding(number * 2000, time.time()))
        await asyncio.sleep(0.1)


async def client(url: str) -> dict[str, dict[str, float]]:
    out: dict[str, dict[str, float]] = {}
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for path in (*ROUTES, *WHOLE):
            took = []
            for _ in range(ROUNDS if path in (*ROUTES, "/v1/state") else 5):
                began = time.perf_counter()
                answer = await http.get(path)
                took.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
            took.sort()
            out[path] = {
                "median_ms": round(took[len(took) // 2], 1),
                "p95_ms": round(took[min(len(took) - 1, int(len(took) * 0.95))], 1),
                "kB": round(len(answer.content) / 1000, 1),
            }
    return out


async def main() -> None:
    async with filled_controller() as (controller, _folder, _presets), ApiServer(controller) as server:
        busy = asyncio.create_task(noise(controller))
        # The client is a process of its own: its time must not be the server's.
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, server.url, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        busy.cancel()
    figures = msgspec.json.decode(said)
    for path, row in figures.items():
        print(f"{path:52} median {row['median_ms']:7.1f} ms   p95 {row['p95_ms']:7.1f} ms   {row['kB']:8.1f} kB")
    worst = max(figures[path]["p95_ms"] for path in ROUTES)
    print(f"worst p95 of pages: {worst:.1f} ms; of /v1/state {figures['/v1/state']['p95_ms']:.1f} ms")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(client(sys.argv[1]))))
    else:
        asyncio.run(main())
