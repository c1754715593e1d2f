"""Arrays on a GPU: those of others that come in, and those that go out."""
