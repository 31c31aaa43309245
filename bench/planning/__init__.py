"""From a request to a plan of trials: suites, what is measured by default, estimates of time, the largest batch."""
