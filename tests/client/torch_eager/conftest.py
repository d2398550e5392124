"""One thread, and one cache of costs for all tests of eager mode; plans don't depend on how long regions take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from remat.torch.cost_cache import CACHE_DIR_VARIABLE
from remat.torch.eager import survey


@pytest.fixture(autouse=True, scope="package")
def _one_thread_and_costs_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ops as small as these only wait for each other on several
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_DIR_VARIABLE, str(tmp_path_factory.mktemp("costs")))
        patch.setattr(survey, "rerun_ns", lambda *_region, **_flags: 0)
        yield
    torch.set_num_threads(threads)
