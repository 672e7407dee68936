"""The tuner: the fastest verified configuration of a kernel, found within a time budget."""
