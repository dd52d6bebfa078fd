"""The tests of open steps are expected to fail: one that passes is a failure, until its entry in `open.toml` is gone."""

from __future__ import annotations

import pytest
from tests.walks.walking import FOLDER, open_steps


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `open.toml` names."""
    waiting = {one.test: f"{one.step}: {one.what} (issue {one.issue})" for one in open_steps() if one.test}
    for item in items:
        if item.path.parent != FOLDER:
            continue
        reason = waiting.get(f"{item.path.name}::{getattr(item, 'originalname', item.name)}")
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
