"""The instrument's tests of itself."""
