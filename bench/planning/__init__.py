"""From a request to a plan of trials: defaults, estimates of time, the largest batch, warnings."""
