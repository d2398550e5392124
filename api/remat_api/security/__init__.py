"""Who may do what: callers, keys and what a request from the network must show."""
