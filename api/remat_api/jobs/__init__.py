"""The work: states, the engine that transports job ids, and the worker processes that solve."""
