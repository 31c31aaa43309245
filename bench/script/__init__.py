"""Training scripts that are run as they are: the hook inside their process, and figures of what it recorded."""
