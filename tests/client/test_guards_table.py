"""docs/guards.md names a test for each rule: those tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "x": "exact",
    "e": "eager",
    "i": "inductor",
    "p": "pieces",
    "d": "distributed",
    "v": "verify",
    "a": "adapters",
}
ROWS = [line for line in (ROOT / "docs/guards.md").read_text().splitlines() if line.startswith("|") and "::" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_the_test_of_a_rule_exists(row: str) -> None:
    ((folder, file, name),) = re.findall(r"`(\w)/(test_\w+\.py)::(test_\w+)`", row)
    text = (ROOT / "tests/client" / f"torch_{FOLDERS[folder]}" / file).read_text()
    assert f"\ndef {name}(" in text


def test_the_table_is_read() -> None:
    assert len(ROWS) > 50
