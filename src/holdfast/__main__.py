"""`python -m holdfast`: the `holdfast` command."""

from __future__ import annotations

from holdfast.cli.entry import main

main()
