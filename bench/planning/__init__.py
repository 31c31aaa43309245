"""From a request to a plan of trials: suites, defaults, estimates of time, the largest batch."""
