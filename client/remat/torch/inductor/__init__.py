"""Inductor mode: plans for models that PyTorch compiles to fused kernels.

AOTAutograd traces the step, Inductor's own passes rewrite the trace, and a partitioner of ours cuts it into forward
and backward as a plan says. Inductor then fuses and schedules as it does for any graph, so that a result is not equal
to the bit to eager mode's (nor, always, to another compilation's), and a peak can only be measured:

    partitioners.py   PyTorch's own partitioner, watched or told to save less, and one that follows a schedule
    products.py       keeping matrix products where a plan runs them
    fusion.py         the op graph in which each stored result is one op, with all that is computed on the way to it
    kernel_costs.py   what such an op costs: arithmetic, and memory traffic at its edges only
    layouts.py        in which memory order convolutions read, and what kernels cost there
    rehearsal.py      a step's peak without compiling its kernels
    trials.py         compiling a step in some way, and running it for its peak, its results and its time
    survey.py         the plain compiled step, and what is learned of it for all budgets
    planning.py       try, measure, adjust, until peaks are within the budget; then take the fastest way
    difference.py     whether a planned step's gradients are those of the plain compiled one
    plan.py           the result
    compile.py        the mode on a model
"""
