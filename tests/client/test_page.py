"""The offline page: everything inside it, nothing lost on the way, hostile names harmless."""

import json
import re

from remat.page import PlannedModel, render_page
from remat_solver.graph import Graph
from remat_solver.plan import Plan, Provenance, referee_plan
from tests.solver.graphs import chain, op

SCHEDULE = (0, 1, 2, 3, 4, 0, 5)


def plan_for(graph: Graph, schedule: tuple[int, ...]) -> Plan:
    return referee_plan(
        graph,
        schedule,
        budget_bytes=10**6,
        bound_ns=0,
        proof_scope="order",
        provenance=Provenance(strategy="by hand"),
    )


def embedded_data(page: str) -> list[dict[str, object]]:
    blocks = re.findall(r'<script type="application/json" id="[^"]+">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in blocks]


def test_the_page_carries_its_own_data_and_tables() -> None:
    plan = plan_for(chain(3), SCHEDULE)
    page = render_page("Title", [PlannedModel(title="chain", graph=chain(3), plans=(plan,), frontier=(plan,))])
    (data,) = embedded_data(page)
    timelines = data["timelines"]
    assert isinstance(timelines, list)
    assert [line["label"] for line in timelines] == ["store-all", "2222222% budget"]
    assert max(timelines[0]["in_use_bytes"]) == plan.store_all_peak_bytes
    assert max(timelines[1]["in_use_bytes"]) == plan.peak_bytes
    assert "16.67%" in page  # the overhead of one recompute in six ops, in the table twin
    assert "<code>f0</code>" in page


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = render_page("T", [PlannedModel(title="m", graph=chain(3), plans=(plan_for(chain(3), SCHEDULE),))])
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", page)


def test_hostile_names_stay_text() -> None:
    hostile = "</script><script>alert(1)</script>"
    graph = Graph(ops=(op(hostile), op("b", 0), op("c", 0)), name=hostile)
    page = render_page(hostile, [PlannedModel(title=hostile, graph=graph, plans=(plan_for(graph, (0, 1, 0, 2)),))])
    assert "<script>alert" not in page
    assert embedded_data(page)
