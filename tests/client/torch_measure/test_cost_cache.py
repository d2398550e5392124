"""The cost cache: shared by processes, and never the reason that a plan fails."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remat.torch.cost_cache import CostCache, OpCost, default_cache_dir

COST = OpCost(time_ns=1230, workspace_bytes=4096)


def test_what_is_put_is_found_again_in_its_environment_only(tmp_path: Path) -> None:
    CostCache(tmp_path).put("gpu", {"a": COST})
    assert CostCache(tmp_path).get("gpu", ["a", "b"]) == {"a": COST}
    assert CostCache(tmp_path).get("cpu", ["a"]) == {}


def test_the_first_to_write_wins(tmp_path: Path) -> None:
    cache = CostCache(tmp_path)
    cache.put("cpu", {"a": COST})
    cache.put("cpu", {"a": OpCost(time_ns=9, workspace_bytes=9), "b": COST})
    assert cache.get("cpu", ["a", "b"]) == {"a": COST, "b": COST}


def test_a_corrupt_file_is_set_aside_and_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CostCache(tmp_path)
    cache.path.write_bytes(b"this is no database, however long one looks at it" * 100)
    with caplog.at_level(logging.WARNING, logger="remat"):
        assert cache.get("cpu", ["a"]) == {}
    assert "corrupt" in caplog.text
    assert len(list(tmp_path.glob("costs.sqlite.corrupt-*"))) == 1
    cache.put("cpu", {"a": COST})
    assert cache.get("cpu", ["a"]) == {"a": COST}


def test_a_place_that_cannot_be_written_is_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CostCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING, logger="remat"):
        cache.put("cpu", {"a": COST})
        assert cache.get("cpu", ["a"]) == {}
    assert "going on without it" in caplog.text


def test_the_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("REMAT_CACHE_DIR", raising=False)
    assert default_cache_dir() == tmp_path / "remat"
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(worker: int) -> None:
        for index in range(20):
            CostCache(tmp_path).put("cpu", {f"op {index}": OpCost(time_ns=worker, workspace_bytes=worker)})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, (1, 2, 3)))
    found = CostCache(tmp_path).get("cpu", [f"op {index}" for index in range(20)])
    assert len(found) == 20
    assert all(cost.time_ns == cost.workspace_bytes for cost in found.values())
