"""Stories of several processes, in the order in which they run."""

SCENARIOS = {}
