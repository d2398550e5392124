"""Eager mode: plans for models that PyTorch can't capture as one graph.

The model runs op by op as its author wrote it. Some of its modules, the *regions*, run under PyTorch's
non-reentrant checkpoint, each with the set of results that it saves (`remat_solver.save_sets` chooses them):

    regions.py        which modules can be regions
    draws.py          what chance may change from step to step: planned for where it is seen
    kept.py           what the model keeps from step to step beside its parameters and buffers
    survey.py         what each region does: its ops, what saving their results holds, what its backward keeps
    trial.py          one step with nothing saved: the peak between any two moments at which a region begins or ends
    planning.py       solve, run, measure, adjust, until the measured peak is within the budget
    region_call.py    running a region by its plan, and refusing what would change gradients
    saving.py         what a region keeps from its forward for its recompute
    plan.py           the result
"""
