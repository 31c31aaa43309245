"""Who runs a trial: local processes of a fork server."""
