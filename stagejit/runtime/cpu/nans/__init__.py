"""Where a float becomes NaN: what `Options(check_nans=True)` adds."""
