"""Writes docs/api.md: `python docs/make_api.py`. Routes and forms come from the API's own OpenAPI document."""

# ruff: noqa: E501 - prose and rows of tables are one line each

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.api.auth import Role
from holdfast.api.docs_page import document
from holdfast.api.limits import Limits
from holdfast.model.events import Command

PAGE = Path(__file__).parent / "api.md"

HEAD = """\
# The API

`holdfast controller` serves it under `/v1`. Every route with its parameters and forms stands on the controller's own page `/docs`, and as an OpenAPI
3.1 document at `/docs/openapi.json`; both load nothing from elsewhere. This page lists the routes and says how they are used. The command line and
`holdfast top` use the same routes, through `holdfast.client`.

```
$ curl -H "Authorization: Bearer $(cat DIR/controller/token)" "http://127.0.0.1:8470/v1/incidents?open_only=true"
```

```python
from holdfast.client import AsyncClient

async with AsyncClient("http://127.0.0.1:8470", token) as client:
    async for event in client.stream(after=0):  # every event, typed; ask again with after=event.seq
        print(event)
    seen = await client.tag(node="n7")
    done = await client.command("return", node="n7", why="fan replaced", if_match=seen)
    print(done.refused or "taken")
```

`Client` has the same methods for code that does not await, also in a notebook. `rows` makes a table's rows of records; pandas
is not part of Holdfast:

```python
import pandas as pd
from holdfast.client import Client, rows

client = Client("http://127.0.0.1:8470", token)
jobs = pd.DataFrame(rows(client.jobs()))
attempts = pd.DataFrame(rows(client.jobs(job="1778")[0].attempts))
steps = pd.DataFrame(rows(client.samples("step", "job:1778(*")))
for event in client.follow(job="1778"):  # waits for the next one, without end
    print(event)
```

[examples/notebook/follow-a-job.ipynb](../examples/notebook/follow-a-job.ipynb) submits a job, follows it and plots what happened.

## Tokens and roles

`holdfast token create NAME --role ROLE` prints a token once; the book (`DIR/controller/tokens`) holds its SHA-256 only, compared in constant time.
`holdfast token list` shows who has which, `holdfast token revoke ID` ends one, with NAME all of that name: a running controller, and sessions opened with it, go by that
within a second. `--expires 30d` sets an end, `--only agent:node07` binds an agent's token to one source. A token in an address opens nothing.
On Slurm, agents, launchers and users get short-lived tokens by munge in place of these ([security.md](security.md#munge-no-tokens-on-slurms-nodes)).

`--sees user:NAME` and `--sees project:NAME` (Slurm's account, Kubernetes' namespace) give a token a scope: it reads, and with the role owner or operator commands, the jobs of
that user or project alone. Records, events, the stream, samples and the audit leave the others out; of an incident that concerns others' jobs too it gets its own part; of nodes
those on which its jobs run. Routes that are about the whole cluster, and the cockpit's pages but those of single jobs, refuse it. A token without a scope sees everything.
While the journal cannot be written, reports and commands are answered 503 at once.

| role | may |
|---|---|
| viewer | read |
| owner | read, and requeue, hold, release, give up, evacuate jobs whose user is the token's name, approve and reject orders about them |
| agent | report events and beats (agents, launchers) |
| operator | all of these, for every job and node |

Every command is journalled with who and why before anything comes of it, and stands in `/v1/audit` with what came of it.

What a reporter may say follows from its source, and is checked on the contents of each event and beat against what the scheduler shows:

| source | speaks for | may send |
|---|---|---|
| `agent:NODE` | this node, which the scheduler must have; jobs that the scheduler has on it now or had within the last hour | its own state; findings about the node and those jobs; their steps and checkpoints; outcomes of its own orders |
| `launcher:JOB` | this job; nodes that the scheduler has given to it | findings, attempts, steps, checkpoints, stacks, escalation; outcomes of its own orders |
| `drill:NAME`, with an operator's token | the time of a drill's fault | `drill_fired` |

- A log line may name any host. It is kept as the finding's place only where it is a node of the reporter's own job.
- A launcher's `node_gone` is a claim: the scheduler is asked at once (a fresh look; on Slurm the node's slurmd too) and
  for two minutes; the engine hears of it once it is confirmed, and never when the node's agent is heard meanwhile.
- Numbers, times, texts and lists have bounds (`model/bounds.py`). A time may be 15 minutes ahead, beyond what the reporter's beats tell of its clock.
- What is refused is named in the answer, counted in `holdfast_reports_refused_total` and logged once in ten minutes for each reporter.
- An agent whose node the scheduler does not know keeps what it has seen and tries again; while the scheduler cannot be read, everybody unknown does.
- A token without `--only` may be used with any source of its role: give each node its own.
"""

REST = """\
## Lists come in pages

A list gives at most `limit` records and, when there are more, `Link: </v1/jobs?limit=100&cursor=...>; rel="next"`. A cursor says behind which record
the next page begins, so what comes or goes meanwhile makes no page skip or repeat the others. `holdfast.client` follows the links by itself.

## Records have tags

A single record's answer carries an `ETag`. `If-None-Match` with it gives 304 until the record changes. `If-Match` on a command has it done only if
its target is still as it was seen, else 412 and nothing is journalled. The tag guards against an outdated page, not against a change within the same
millisecond. An approval is moreover judged by a fresh look at the cluster, taken before it is journalled.

## The stream

`/v1/stream` sends every event as it is stored: `id` is its sequence number, `event` its kind, `data` the event as JSON. A reader that was cut off
comes back with `Last-Event-ID` (a browser does so by itself) or `after`, and misses nothing and gets nothing twice, as far back as the journal reaches.
A comment comes every 15 seconds. For programs that cannot keep a stream, `/v1/events?after=N&wait=30` waits for the next ones.

## Commands

`POST /v1/commands` with one target (`node`, `job`, `order` or `group`), `why`, and for `set_mode` a `value` (observe, advise, act) and a `remedy`:
COMMANDS. A job is written `{"cluster": "main", "id": "1778"}`, with `generation` where the scheduler has used the id before
(as records of `GET /v1/jobs` have it in `key`). The answer holds `refused`, the engine's sentence when it said no; empty: taken. With an `id` of your own a command
that is sent twice is done once, and both answers are the same; an id that another command has is refused (400).

## Errors and limits

Errors are `application/problem+json`: `title`, `status`, `detail`, one sentence, never a traceback. 400 not understood, 401 no valid token, 403 not
allowed, 404 no such thing, 408 the body came too slowly, 409 the engine cannot, 412 changed since, 413 body too large (8 MiB; a command 64 KiB), 414
query too long, 415 not JSON, 429 too much at once, 503 not now. 429 and 503 say in `Retry-After` when to come back.

Per token and address: REQUESTS requests a second (BURST at once); agents and launchers REPORTS; REFUSALS refused tokens a second from
one address (GUESSES at once); STREAMS open streams (EACH of one token and address). A head that takes longer than 10 s, or a body that takes longer than 30 s,
is cut off. Requests of another site's page (`Origin`) and form content types are refused; a session of the cockpit also needs its own proof to
change anything. Beyond loopback the server does not start without tokens.

## How quick

With 2,000 nodes, 5,000 jobs and 100,000 findings in SQLite, and 200 findings a second coming in (`benchmarks/api_reads.py`, 2 cores that other work
shared, given precedence, 2026-11-22): every route that gives one page or one record answers with a median of 2 to 8 ms and a p95 of 2 to 13 ms
(`/v1/jobs?limit=100` 51 ms); lists of 1,000 records take 15 to 29 ms, `/metrics` 29 and 37 ms. `/v1/state`, which gives everything (1.9 MB), takes 14 ms
and 40 ms: its records are kept as JSON, and only what commits have touched since the last answer is read again. The first answer reads everything.

Commands take `If-Match` with the `ETag` of a job, node or order: 412, and nothing done, when it has changed since.
"""


def page() -> str:
    """The whole page."""
    limits = Limits()
    lines = [HEAD, "## Routes", "", "| route | what |", "|---|---|"]
    for path, item in sorted(document()["paths"].items()):
        for method, operation in item.items():
            lines.append(
                f"| `{method.upper()} {path}`{_query(operation)} | {_one_line(operation.get('description', ''))} |"
            )
    commands = ", ".join(f"`{one}`" for one in Command)
    rest = REST.replace("COMMANDS", commands)
    for word, value in (
        ("REQUESTS", limits.requests_per_s), ("BURST", limits.requests_burst), ("REPORTS", limits.reports_per_s),
        ("REFUSALS", limits.refusals_per_s), ("GUESSES", limits.refusals_burst), ("STREAMS", limits.streams),
        ("EACH", limits.streams_each),
    ):  # fmt: skip
        rest = rest.replace(word, f"{value:g}")
    if {role.value for role in Role} != {"viewer", "owner", "agent", "operator"}:
        raise ValueError("the table of roles above is not the code's")
    return "\n".join([*lines, "", rest])


def _query(operation: dict[str, Any]) -> str:
    names = [f"`{one['name']}`" for one in operation.get("parameters", []) if one["in"] == "query"]
    return f" ({', '.join(names)})" if names else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
