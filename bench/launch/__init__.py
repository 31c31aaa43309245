"""Who runs a trial: processes of a fork server, on this machine, on several nodes, or on a Ray cluster."""
