"""Running ops for real while PyTorch is in the middle of tracing.

Planning happens inside a compiler's callback, where fake tensors, functionalization, autocast and
Dynamo's own modes are active. All of that state belongs to a thread, so a fresh thread has none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def run_untraced(work: Callable[[threading.Event], Result]) -> Result:
    """Calls `work` on a fresh thread, without gradients and with the caller's thread count and CUDA device.

    `work` is given an event that is set when the caller is interrupted; it should then return soon.
    What it returns or raises is passed on. The default random generators are left as they were.
    """
    stop = threading.Event()
    outcome: list[Result] = []
    errors: list[BaseException] = []
    threads = torch.get_num_threads()
    cuda_started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    cuda_device = torch.cuda.current_device() if cuda_started else None

    def body() -> None:
        try:
            torch.set_num_threads(threads)  # OpenMP's count belongs to a thread too
            if cuda_device is not None:
                torch.cuda.set_device(cuda_device)
            devices = range(torch.cuda.device_count()) if cuda_started else ()
            with torch.no_grad(), torch.random.fork_rng(devices=devices):
                outcome.append(work(stop))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="remat-measure", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        stop.set()
        raise
    if errors:
        raise errors[0]
    return outcome[0]
