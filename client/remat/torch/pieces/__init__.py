"""Pieces mode: plans for models that PyTorch cuts into several graphs, under one budget.

Each graph, a *piece*, is planned op by op and run by the exact runtime. Pieces can't recompute each other's values, but
what one saves is in memory while others run. So how much each may save is chosen for all of them together:

    ways.py        the ways to run one piece: from everything recomputed to nothing
    runtime.py     the backend that builds each piece by its schedule, and tells when pieces begin and end
    planning.py    a step with nothing saved, measured stretch by stretch; a choice for all pieces; trial steps
    plan.py        the result
    compile.py     a model under such a plan
"""
