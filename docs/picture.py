"""Draw the README's picture of a terminal from the journal of a demo: `python docs/picture.py holdfast-demo`.

Not a generated page: its numbers are those of one real run, so it is made by hand when the output changes its shape.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
from pathlib import Path

from rich.console import Console, Group
from rich.text import Text

from holdfast.adapters.journal import open_journal
from holdfast.report.gather import ReportData, gather
from holdfast.report.terminal import story_panel, timeline_table, totals_table

IMAGE = Path(__file__).with_name("img") / "demo.svg"


async def read(folder: Path) -> ReportData:
    """The demo's job is the last one of its cluster."""
    journal = open_journal(f"sqlite:///{(folder / 'cluster' / 'controller' / 'journal.db').absolute()}")
    try:
        jobs = sorted(str(job.key) for job in await journal.jobs())
        newest = max(job.attempts[-1].ended_at for job in await journal.jobs() if job.attempts)
        return await gather(journal, title="", cluster="", now=newest, job=jobs[-1])
    finally:
        await journal.close()


def main() -> None:
    """Write the picture."""
    data = asyncio.run(read(Path(sys.argv[1] if len(sys.argv) > 1 else "holdfast-demo")))
    console = Console(width=90, record=True, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(
        Group(
            Text("$ make demo"),
            timeline_table(data.incidents),
            totals_table(data.totals),
            *(story_panel(number, incident) for number, incident in enumerate(data.incidents, 1)),
        )
    )
    # Without the font that it would fetch: a picture must not call anybody.
    svg = re.sub(r"@font-face \{.*?\}\n", "", console.export_svg(title="holdfast demo"), flags=re.DOTALL)
    IMAGE.write_text(svg, encoding="utf-8")
    sys.stdout.write(f"{IMAGE}\n")


if __name__ == "__main__":
    main()
