"""python -m benchmarks.zoo: does a plan change a bit, or exceed its budget, on any of many architectures?

Each is a tiny model with random weights, trained for three steps: eagerly, through
`torch.compile(backend="aot_eager")`, and by us at 60% of the store-all peak and at 1.1 times the working-set bound.
Losses, gradients, buffers, parameters and the random stream are compared bit for bit, peaks are the allocator's own.
What can't be captured as one graph is planned by pieces mode and by eager mode, each at the least of 60, 70, 80 and 90%
that it reaches. A row is identical if it equals eager; where aot_eager itself does not, if it equals aot_eager, which
is counted apart.

Needs `pip install -e '.[zoo]'`. The architectures of timm need torchvision, and thereby another torch: run them with
the Python of an environment that has both (`--package timm`); their rows join those in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.zoo.catalogue import architectures
from benchmarks.zoo.run import read_rows, run_checks
from benchmarks.zoo.table import as_page


def main() -> int:
    """The command; exit code 1 if a row that we are to blame for is not as promised."""
    known = architectures()
    packages = sorted({architecture.package for architecture in known.values()})
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--names", help=f"comma-separated; of {', '.join(known)}")
    parser.add_argument("--package", choices=packages, default="transformers", help="all architectures of a package")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one architecture")
    parser.add_argument("--fresh", action="store_true", help="run again what the file holds already")
    parser.add_argument("--json", type=Path, required=True, help="keep the rows here, and a page of them beside it")
    arguments = parser.parse_args()
    names = arguments.names.split(",") if arguments.names else None
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        parser.error(f"no architecture {unknown[0]!r}")
    wanted = [
        each for each in known.values() if (each.name in names if names else each.package == arguments.package)
    ]  # fmt: skip
    run_checks(wanted, arguments.json, timeout_s=arguments.timeout, fresh=arguments.fresh)
    rows = read_rows(arguments.json)
    date = json.loads(arguments.json.read_text())["machine"]["date"]
    arguments.json.with_suffix(".md").write_text(as_page(rows, date=date))
    asked = [row for row in rows if row.name in {each.name for each in wanted}]
    ours = [row for row in asked if row.cause == "us"]
    Console().print(
        f"{sum(row.identical for row in asked)} of {len(asked)} identical, "
        f"{sum(row.within_budget for row in asked)} within budget; see {arguments.json.with_suffix('.md')}"
    )
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
