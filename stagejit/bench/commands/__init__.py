"""The commands of the command line, a file for each group; `cli.py` puts them together."""
