"""Files and wire text: what is written is read back, and what is broken is refused with a place."""

import json
from pathlib import Path

import pytest
from backports import zstd
from pydantic import ValidationError

from remat_solver.errors import InvalidGraph, InvalidPlan, UnreadableFile
from remat_solver.files import decompress_zstd, dump_json, load, parse_json, save, strict_reader
from remat_solver.graph import Graph
from remat_solver.plan import Plan, Provenance, referee_plan
from tests.solver.graphs import chain


def plan_for(graph: Graph) -> Plan:
    return referee_plan(
        graph,
        range(len(graph)),
        budget_bytes=10**6,
        bound_ns=0,
        proof_scope="order",
        provenance=Provenance(strategy="store_all"),
    )


@pytest.mark.parametrize("name", ["graph.json", "graph.json.zst"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    graph = chain(4)
    save(graph, tmp_path / name)
    assert load(Graph, tmp_path / name) == graph
    save(plan_for(graph), tmp_path / f"plan-{name}")
    assert load(Plan, tmp_path / f"plan-{name}") == plan_for(graph)


GOOD = json.loads(dump_json(chain(2)))


def broken(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


def broken_op(**changes: object) -> bytes:
    return json.dumps(GOOD | {"ops": [GOOD["ops"][0] | changes, *GOOD["ops"][1:]]}).encode()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"", ""),
        (b"null", ""),
        (b"[]", ""),
        (dump_json(chain(2))[:-20], ""),
        (b"\xff\xfe{}", ""),
        (b"[" * 100_000, ""),
        (broken(surprise=1), "surprise"),
        (broken(ops="none"), "ops"),
        (broken(outputs=[1.5]), "outputs[0]"),
        (broken(outputs=["0"]), "outputs[0]"),
        (broken(schema="remat.graph/2"), "schema"),
        (broken_op(color="red"), "ops[0].color"),
        (broken_op(time_ns="3"), "ops[0].time_ns"),
        (broken_op(time_ns=3.0), "ops[0].time_ns"),
        (broken_op(writes=[{"size_bytes": 1, "x": 2}]), "ops[0].writes[0].x"),
        (broken_op(phase="sideways"), "ops[0].phase"),
        (dump_json(chain(2)).replace(b'"time_ns":1', b'"time_ns":NaN', 1), "ops[0].time_ns"),
    ],
)
def test_malformed_text_says_where(text: bytes, where: str) -> None:
    with pytest.raises(UnreadableFile) as caught:
        parse_json(Graph, text, path="g.json")
    assert caught.value.where == where
    assert str(caught.value).startswith("g.json is no graph")
    assert caught.value.hint


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-5", str(2**70)])
def test_absurd_numbers_are_the_graphs_own_error(number: str) -> None:
    text = dump_json(chain(2)).replace(b'"size_bytes":10', b'"size_bytes":' + number.encode(), 1)
    with pytest.raises(InvalidGraph, match=r"op 0 \('f0'\): size_bytes is"):
        parse_json(Graph, text)


def test_plans_that_contradict_themselves_are_refused() -> None:
    plan = json.loads(dump_json(plan_for(chain(2))))
    with pytest.raises(InvalidPlan, match="exceeds its budget"):
        parse_json(Plan, json.dumps(plan | {"budget_bytes": 1}).encode())


def test_files_that_are_not_there_or_have_no_format(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="No such file"):
        load(Graph, tmp_path / "missing.json")
    (tmp_path / "graph.yaml").write_bytes(b"{}")
    with pytest.raises(UnreadableFile, match="extension chooses"):
        load(Graph, tmp_path / "graph.yaml")
    with pytest.raises(UnreadableFile, match="extension chooses"):
        save(chain(2), tmp_path / "graph")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.yaml"]


def test_truncated_and_foreign_compressed_files(tmp_path: Path) -> None:
    whole = zstd.compress(dump_json(chain(2)))
    for data, says in [(whole[:-5], "truncated"), (b"not zstd at all", "no zstd stream")]:
        (tmp_path / "g.json.zst").write_bytes(data)
        with pytest.raises(UnreadableFile, match=says):
            load(Graph, tmp_path / "g.json.zst")


def test_a_decompression_bomb_is_stopped() -> None:
    bomb = zstd.compress(bytes(64 * 2**20))
    assert len(bomb) < 10_000
    with pytest.raises(UnreadableFile, match="more than 1000000 bytes"):
        decompress_zstd(bomb, 1_000_000)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph.json"
    save(chain(2), path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(chain(3), path)
    assert load(Graph, path) == chain(2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["graph.json"]


def test_a_list_is_given_up_at_its_first_wrong_item() -> None:
    reads = b",".join([b"null"] * 1000)
    with pytest.raises(ValidationError) as refused:
        strict_reader(Graph).validate_json(b'{"ops":[{"name":"a","time_ns":1,"reads":[' + reads + b"]}]}", strict=True)
    assert refused.value.error_count() == 1
