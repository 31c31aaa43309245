"""All that differs by kind of device: synchronization, memory, telemetry, capabilities, and the survey of a machine."""
