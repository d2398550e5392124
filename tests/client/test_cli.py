"""The command line as its users meet it: a real process, files, exit codes, one line for each error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remat.cli import main
from remat_solver.files import load, save
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from tests.solver.graphs import chain, wide

Run = Callable[..., tuple[str, str]]

MODULE = """
import torch
import remat

def layer():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[layer() for _ in range(6)])
    def forward(self, x):
        return self.layers(x).square().sum()

class Broken(Net):
    def forward(self, x):
        if x.sum().item() > 0:
            x = x + 1
        return super().forward(x)

def step():
    torch.manual_seed(0)
    model = Net()
    return remat.Step(model, args=(torch.randn(512, 64),), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

def other():
    model = torch.nn.Linear(8, 1)
    return remat.Step(model, args=(torch.randn(4, 8),), loss_fn=torch.sum)

def broken():
    return remat.Step(Broken(), args=(torch.randn(512, 64),))

def not_a_step():
    return 3

def failing():
    raise RuntimeError("no data here")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a graph and a module with steps, where `remat` runs."""
    (tmp_path / "training.py").write_text(MODULE)
    save(chain(12, 2**20), tmp_path / "graph.json.zst")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("training", None)


@pytest.fixture
def remat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the `remat` command and returns what it printed (stdout, stderr), white space folded."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["remat", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed, complained = capsys.readouterr()
        assert ended.value.code == code, printed + complained
        return " ".join(printed.split()), " ".join(complained.split())

    return run


def complaint(remat: Run, *arguments: str) -> str:
    """What `remat` complains of: one line, no traceback."""
    printed, complained = remat(*arguments, code=1)
    assert "Traceback" not in complained + printed
    assert complained.startswith("remat: "), complained
    return complained


def test_help_names_every_command_and_needs_no_torch(folder: Path, remat: Run) -> None:
    printed, _ = remat("--help")
    for command in ("demo", "capture", "solve", "frontier", "report", "verify", "serve"):
        assert re.search(rf"\b{command}\b", printed)
    source = "import sys, remat.cli; remat.cli.build_app(); print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"


def test_a_real_process_complains_on_one_line_too(folder: Path) -> None:
    command = [sys.executable, "-m", "remat", "solve", "missing.json", "--budget", "60%"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "remat: can't read missing.json: No such file or directory. Check the path.\n"


def test_solve_then_report_then_frontier(folder: Path, remat: Run) -> None:
    printed, _ = remat("solve", "graph.json.zst", "--budget", "60%", "-o", "plan.json", "--html", "plan.html")
    plan = load(Plan, folder / "plan.json")
    assert plan.peak_bytes <= plan.budget_bytes < plan.store_all_peak_bytes
    assert f"{plan.overhead:.2%}" in printed
    assert "<html" in (folder / "plan.html").read_text()
    printed, _ = remat("report", "graph.json.zst", "plan.json")
    assert "The referee confirms it" in printed
    remat("frontier", "graph.json.zst", "--points", "4", "--json", "frontier.json")
    points = json.loads((folder / "frontier.json").read_text())["points"]
    assert [point["overhead"] for point in points] == sorted((p["overhead"] for p in points), reverse=True)


def test_a_module_within_a_budget_of_its_own(folder: Path, remat: Run) -> None:
    save(chain(6, 1000), folder / "chain.json")
    remat("solve", "chain.json", "--budget", "100%", "--module-budget", "f?=4KB", "-o", "plan.json")
    assert load(Plan, folder / "plan.json").recompute_count == 2
    complained = complaint(remat, "solve", "chain.json", "--budget", "100%", "--module-budget", "f1")
    assert "not of the form PATTERN=BYTES" in complained


def test_another_order_is_told_apart_from_recomputation(folder: Path, remat: Run) -> None:
    save(wide(), folder / "wide.json")
    printed, _ = remat("solve", "wide.json", "--budget", "12", "--reorder", "-o", "plan.json")
    assert "from 19 B to 11 B" in printed
    assert load(Plan, folder / "plan.json").recompute_count == 0
    printed, _ = remat("report", "wide.json", "plan.json", "--html", "plan.html")
    assert "The referee confirms it" in printed
    assert "Ops run in another order" in printed


def test_a_report_in_money(folder: Path, remat: Run) -> None:
    remat("solve", "graph.json.zst", "--budget", "60%", "-o", "plan.json")
    printed, _ = remat("report", "graph.json.zst", "plan.json", "--gpu-hour", "2.5", "--steps", "1000000")
    plan = load(Plan, folder / "plan.json")
    assert f"{2.5 / (1 + plan.overhead):.3g} an hour" in printed
    assert "1,000,000 steps" in printed
    assert "makes no sense" in complaint(remat, "report", "graph.json.zst", "plan.json", "--gpu-hour", "-1")


def test_least_memory_within_an_allowance(folder: Path, remat: Run) -> None:
    remat("solve", "graph.json.zst", "--max-overhead", "20%", "-o", "plan.json.zst")
    plan = load(Plan, folder / "plan.json.zst")
    assert plan.objective == "memory"
    assert plan.overhead <= 0.2
    assert plan.peak_bytes < plan.store_all_peak_bytes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("solve", "missing.json", "--budget", "60%"), "can't read missing.json"),
        (("solve", "training.py", "--budget", "60%"), "ends neither in .json nor in .json.zst"),
        (("solve", "graph.json.zst"), "give either --budget or --max-overhead"),
        (("solve", "graph.json.zst", "--budget", "lots"), "can't read the budget 'lots'"),
        (("solve", "graph.json.zst", "--max-overhead", "some"), "can't read the overhead 'some'"),
        (("solve", "graph.json.zst", "--budget", "1KB"), "no plan fits in 1000 bytes"),
        (("solve", "graph.json.zst", "--budget", "60%", "--strategy", "magic"), "strategy 'magic' is unknown"),
        (("solve", "graph.json.zst", "--budget", "60%", "--keep", "nothing*"), "no op's name matches"),
        (("report", "graph.json.zst", "graph.json.zst"), "graph.json.zst is no plan"),
        (("solve", "graph.json.zst", "--budget", "9%", "--endpoint", "nowhere"), "no HTTP address"),
        (("capture", "training", "-o", "g.json"), "not of the form MODULE:FACTORY"),
        (("capture", "nonexistent:step", "-o", "g.json"), "can't import nonexistent"),
        (("capture", "training:nothing", "-o", "g.json"), "has no function nothing"),
        (("capture", "training:not_a_step", "-o", "g.json"), "returned int, not a remat.Step"),
        (("capture", "training:failing", "-o", "g.json"), "raised RuntimeError: no data here"),
        (("capture", "training:broken", "-o", "g.json"), "training.py"),
    ],
)
def test_errors_are_one_line_with_a_next_step(folder: Path, remat: Run, arguments: tuple[str, ...], says: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert says in complaint(remat, *arguments)
    after = {path.name for path in folder.iterdir()} - {"cache", "__pycache__"}
    assert sorted(after) == before  # nothing is left half-written


def test_malformed_graph_files(folder: Path, remat: Run) -> None:
    text = json.loads('{"ops": [{"name": "a", "time_ns": 1, "colour": "red"}]}')
    (folder / "bad.json").write_text(json.dumps(text))
    assert "bad.json is no graph at ops[0].colour" in complaint(remat, "solve", "bad.json", "--budget", "60%")
    whole = (folder / "graph.json.zst").read_bytes()
    (folder / "cut.json.zst").write_bytes(whole[:-9])
    assert "truncated zstd stream" in complaint(remat, "solve", "cut.json.zst", "--budget", "60%")


def test_a_plan_for_another_graph_is_refused(folder: Path, remat: Run) -> None:
    remat("solve", "graph.json.zst", "--budget", "60%", "-o", "plan.json")
    graph = load(Graph, folder / "graph.json.zst")
    save(replace(graph, fixed_bytes=7), folder / "other.json")
    assert "the plan was made for graph" in complaint(remat, "report", "other.json", "plan.json")


def test_usage_errors_exit_with_2(folder: Path, remat: Run) -> None:
    _, complained = remat("solve", code=2)
    assert "Missing argument" in complained
    _, complained = remat("frontier", "graph.json.zst", "--points", "1", code=2)
    assert "Invalid value" in complained


def test_capture_solve_verify(folder: Path, remat: Run) -> None:
    printed, _ = remat("capture", "training:step", "-o", "step.json.zst")
    graph = load(Graph, folder / "step.json.zst")
    assert f"{len(graph)} ops" in printed
    assert graph.total_time_ns > 0
    remat("solve", "step.json.zst", "--budget", "75%", "-o", "plan.json")
    printed, _ = remat("verify", "training:step", "plan.json")
    assert "identical" in printed
    assert "plan" in complaint(remat, "verify", "training:other", "plan.json")
    remat("capture", "training:step", "-o", "reserved.json", "--no-measure", "--reserve", "1MiB")
    assert load(Graph, folder / "reserved.json").fixed_bytes == graph.fixed_bytes + 2**20
    assert "no number of bytes" in complaint(remat, "capture", "training:step", "-o", "g.json", "--reserve", "10%")


def test_an_unexpected_failure_is_one_line_too(folder: Path, remat: Run) -> None:
    """A full disk, say: not an error of ours, and still no traceback."""
    complained = complaint(remat, "solve", "graph.json.zst", "--budget", "60%", "-o", "/proc/plan.json")
    assert "REMAT_TRACEBACK=1" in complained
