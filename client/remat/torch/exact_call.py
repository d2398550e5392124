"""What stands in for a model's call in exact mode: the step is captured as one graph, planned and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from remat.torch import random_state
from remat.torch.allocation import main_device, tensors_in
from remat.torch.backend import Backend
from remat.torch.breaks import explain
from remat.torch.joint_capture import compiled_call
from remat.torch.running_out import is_out_of_memory, random_states, release_cached, shortage_of
from remat.torch.sharding import is_sharded
from remat_solver.errors import VerificationFailed


class ExactCall:
    """Plans at the first call with a new input shape, then runs the plan. `check` is asked once, before that."""

    def __init__(
        self,
        model: nn.Module,
        backend: Backend,
        loss_fn: Callable[[Any], Any] | None,
        *,
        check: Callable[..., object] | None,
        max_shapes: int,
    ) -> None:
        self.model = model
        self.backend = backend
        self.loss_fn = loss_fn
        self.check = check
        self.max_shapes = max_shapes
        self.compiled: Callable[..., Any] | None = None
        """Made at the first call: what is done to the model until then (sharding, say) counts."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.check is not None and torch.is_grad_enabled():
            check, self.check = self.check, None
            self._check(check, args, kwargs)
        self.backend.inputs = (args, kwargs)
        try:
            return self._run(args, kwargs)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            if not self.backend.planned:
                self._take_off()
            raise explained.with_traceback(None) from None
        finally:
            self.backend.inputs = None

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.backend.replans:
            return self._compiled()(*args, **kwargs)
        device = main_device([*self.model.parameters(), *tensors_in((args, kwargs))])
        states = random_states(device)
        while True:
            try:
                return self._compiled()(*args, **kwargs)
            except RuntimeError as error:
                may_repeat = self.backend.can_repeat and not is_sharded(self.model)  # whose hooks wait for other ranks
                if not is_out_of_memory(error) or not may_repeat:
                    raise
                shortage = shortage_of(error, device)
            release_cached(device)
            self.backend.lower_budget(shortage)  # outside of `except`: the traceback held what the forward had made
            for device, state in states.items():
                random_state.write(state, device)

    def _compiled(self) -> Callable[..., Any]:
        if self.backend.is_outdated:
            self.backend.forget_records()
            self.backend.is_outdated, self.compiled = False, None
        if self.compiled is None:
            self.compiled = compiled_call(self.model, self.backend, self.loss_fn, max_shapes=self.max_shapes)
        return self.compiled

    def _check(self, check: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            check(self.model, None, *args, **kwargs)
        except VerificationFailed:
            self._take_off()
            raise

    def _take_off(self) -> None:
        """Nothing is left half-applied: the model is as it was."""
        self.model._compiled_call_impl = None
