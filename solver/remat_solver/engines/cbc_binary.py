"""Where CBC's program is: the environment variable `REMAT_CBC`, then PATH, then the one inside PuLP."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from remat_solver.engines.pulp_model import bundled_cbc
from remat_solver.errors import EngineFailed, EngineMissing

SETTING = "REMAT_CBC"
_VERSION = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)


def find_cbc() -> Path:
    """CBC's program; raises `EngineMissing`. A setting that leads nowhere is an error, never skipped."""
    setting = os.environ.get(SETTING)
    if setting:
        found = shutil.which(setting)
        if found is None:
            raise EngineMissing(
                f"{SETTING} is {setting!r}, which is no program that can be run.",
                hint=f"Set {SETTING} to CBC's program, or unset it to use PuLP's own.",
                engine="cbc",
            )
        return Path(found)
    found = shutil.which("cbc") or bundled_cbc()
    if found is None:
        raise EngineMissing(
            "CBC is neither on PATH nor inside the installed PuLP.",
            hint="Install it (apt install coinor-cbc), or set REMAT_CBC to its program.",
            engine="cbc",
        )
    return Path(found)


@lru_cache(maxsize=8)
def cbc_version(program: Path) -> str:
    """The version that CBC prints; raises `EngineFailed` if it prints none."""
    try:
        run = subprocess.run([program, "-quit"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineFailed(f"CBC ({program}) can't be asked for its version: {error}.", engine="cbc") from error
    match = _VERSION.search(run.stdout)
    if match is None:
        raise EngineFailed(f"{program} names no CBC version.", hint="Is it CBC? See REMAT_CBC.", engine="cbc")
    return match[1]
