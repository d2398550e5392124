"""The peak of a compiled step without compiling its kernels.

On the CPU nearly all of Inductor's time goes to the C++ compiler, but a peak depends only on the calls and allocations
around the kernels. A rehearsal lets Inductor lower, fuse and schedule as always, puts nothing in place of every kernel
of its own, fills what is allocated with zeros (so that indices are in range), and runs the step.

Kernels are compiled when the code that Inductor writes is loaded, so that what a rehearsal leaves in PyTorch's cache of
graphs is as good as any: a plan that is taken is not lowered again, nor is what the same job tries at its next start.
Only the loaded code is thrown away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside the block, and on this thread, Inductor's kernels for the CPU do nothing."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    owner = threading.get_ident()
    compile_kernel = AsyncCompile.cpp_pybinding

    def skip(compiler: AsyncCompile, argument_types: list[str], source: str) -> Any:
        is_ours = threading.get_ident() == owner
        return _nothing if is_ours else compile_kernel(compiler, argument_types, source)

    known = set(PyCodeCache.modules_no_attr)
    guards: Any = torch._C._dynamo.guards
    with (
        patch.object(AsyncCompile, "cpp_pybinding", skip),
        patch.object(guards, "_empty_strided_cpu", _zeros),
    ):
        try:
            yield
        finally:
            for path in set(PyCodeCache.modules_no_attr) - known:
                del PyCodeCache.modules_no_attr[path]


def _nothing(*_arguments: Any) -> None:
    """Stands in for a kernel."""


def _zeros(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype).zero_()
