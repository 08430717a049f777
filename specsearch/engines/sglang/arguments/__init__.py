"""From a point to a command line: spelling, rules, pins, measuring options, the words before it."""
