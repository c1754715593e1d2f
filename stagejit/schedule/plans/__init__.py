"""The plan as data and as text: what people, tests and backends read, however it was made."""
