"""The planner: graphs, the referee, the formulation, engines and strategies. Pure: no torch, no network."""
