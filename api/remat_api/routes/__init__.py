"""HTTP on one side, `service.Service` on the other; nothing is decided here."""
