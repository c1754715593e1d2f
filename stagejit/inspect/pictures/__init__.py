"""Pictures of a compilation: graphs, dispatches, memory, time."""
