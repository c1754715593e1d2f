"""Functions of the user's, as the command line names them: explained and profiled."""
