"""What the README tells a newcomer to type works as typed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from remat.cli import main
from remat_solver.files import load
from remat_solver.plan import Plan

README = (Path(__file__).parent.parent.parent / "README.md").read_text()

TRAINING = """
import torch
import remat

def make_step():
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Tanh()) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    return remat.Step(model, args=(torch.randn(1024, 128),), loss_fn=lambda output: output.square().mean(),
                      optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
"""


class Net(torch.nn.Module):
    """Returns its loss, as the README's model does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch).square().sum()
        return loss


def test_the_lines_for_a_training_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    (script,) = re.findall(r"```python\n(import remat\n.*?)```", README, re.DOTALL)
    torch.manual_seed(0)
    model = Net()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    names = {"model": model, "optimizer": optimizer, "loader": [torch.randn(8, 16) for _ in range(3)]}
    exec(script, names)
    assert names["model"] is model
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "training.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in ("mypackage", "mypackage.training"):
        sys.modules.pop(name, None)


@pytest.fixture
def run_line(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def run(line: str) -> None:
        monkeypatch.setattr("sys.argv", shlex.split(line, comments=True))
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, line

    return run


def test_the_lines_for_the_command_line(project: Path, run_line: Callable[[str], None]) -> None:
    lines = [line.strip() for line in README.splitlines() if line.startswith("    remat ")]
    assert [line.split()[1] for line in lines] == ["capture", "solve", "frontier", "verify", "serve"]
    for line in lines[:-1]:  # `remat serve` runs until it is stopped: the other integration tests start it
        run_line(line)
    plan = load(Plan, project / "plan.json")
    assert plan.peak_bytes <= plan.budget_bytes
    assert (project / "frontier.html").stat().st_size > 50_000
