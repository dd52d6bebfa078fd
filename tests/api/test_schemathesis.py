"""The API against its own document: whatever a client sends, no answer is a 5xx and the controller goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from tests.api.engine_house import engine_served
from tests.api.test_api import TOKENS

from holdfast.api import Role
from holdfast.api.docs_page import document

pytestmark = pytest.mark.timeout(900)
schema = schemathesis.openapi.from_dict(document())
api = schema.exclude(path="/v1/stream").exclude(path="/v1/beat")
"""A stream never ends, and a beat with `wait` answers only when there is something to say: both have tests of their own."""
QUICK = hypothesis.settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
LONG = hypothesis.settings(QUICK, max_examples=400, derandomize=False)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A controller with the real engine, served from a thread."""
    found: list[str] = []
    ready, done = threading.Event(), threading.Event()

    async def work() -> None:
        async with engine_served(tmp_path_factory.mktemp("api")) as house:
            await house.five_faults()
            found.append(house.server.url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(400)
    yield found[0]
    done.set()
    thread.join(400)


def ask(case: schemathesis.Case, url: str) -> None:
    case.call_and_validate(
        base_url=url,
        headers={"Authorization": f"Bearer {TOKENS[Role.OPERATOR]}"},
        timeout=300,
        checks=[checks.not_a_server_error],
    )


@api.parametrize()
@QUICK
def test_no_request_gives_a_5xx(case: schemathesis.Case, url: str):
    """A dozen requests made from the document's own types, right and wrong, for each route."""
    if case.query:
        case.query.pop("wait", None)
    ask(case, url)


@pytest.mark.soak
@api.parametrize()
@LONG
def test_no_request_of_many_gives_a_5xx(case: schemathesis.Case, url: str):
    """Four hundred for each route, other ones each time."""
    if case.query:
        case.query.pop("wait", None)
    ask(case, url)


def test_the_controller_is_well_after_all_of_that(url: str):
    """Health is still ok."""
    import httpx

    assert httpx.get(f"{url}/healthz", timeout=300).json()["ok"], Path(url)
