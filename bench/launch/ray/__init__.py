"""launch/ray."""
