"""All that differs by kind of device, and the survey of a machine."""
