"""A node's page from above: what is wrong first, then what was done, then what it rests on; the newest first in each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cockpit.served import run, served
from tests.controller.cases import until

from holdfast.api import Role

pytestmark = pytest.mark.timeout(600)


def test_a_nodes_page_begins_with_what_is_wrong(tmp_path: Path) -> None:
    """State and buttons, incidents, story beside evidence, then temperature; a node of which nothing is known says so."""

    async def work() -> None:
        async with served(tmp_path, replaces=True) as house, house.browser() as http:
            await house.fault("n4")
            await until(lambda: not any(one.status == "pending" for one in house.cockpit.fleet.waiting.values()))
            await house.fault("n4", number=1, summary="Xid 79: off the bus", rule="nvidia.xid.79", fingerprint="other")
            page = (await http.get("/nodes/n4")).text
            main = page[page.index("<main") : page.index("</main")]
            heads = ["Take over", "Incidents", "Story", "Evidence, checks, repairs", "Temperature"]
            assert re.findall(r"<h2[^>]*>([^<]*)</h2>", main) == heads
            evidence = main[main.index("Evidence, checks, repairs") : main.index("Temperature")]
            assert evidence.index("Xid 79") < evidence.index("Xid 74")
            async with house.browser(Role.VIEWER) as viewer:
                quiet = (await viewer.get("/nodes/n5")).text
            for words in (
                "None.",
                "Nothing has become of it yet.",
                "Nothing was told of it lately.",
                "may look, not order",
            ):
                assert words in quiet

    run(work)
