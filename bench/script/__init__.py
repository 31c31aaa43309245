"""Runs training scripts as they are: a hook inside their processes records their steps."""
