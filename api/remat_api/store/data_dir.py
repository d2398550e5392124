"""The data folder belongs to one service at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from remat_solver.errors import InvalidRequest


@contextlib.contextmanager
def data_dir_lock(data_dir: Path) -> Iterator[None]:
    """Holds the folder, which is made if need be; the kernel lets go of it however the process ends.

    Raises `InvalidRequest` if another service holds it, or if it can't be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        file = (data_dir / "lock").open("w")
    except OSError as error:
        raise InvalidRequest(
            f"can't write to the data folder {data_dir}: {error.strerror}.",
            hint="Choose another with --data-dir.",
            field="data_dir",
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(
                f"another remat service uses {data_dir}.",
                hint="Stop it, or choose another folder with --data-dir.",
                field="data_dir",
            ) from None
        yield
