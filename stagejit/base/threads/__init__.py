"""Locks, forks, signals and the collector: what a compiler in a process with threads must heed."""
