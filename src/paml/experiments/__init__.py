"""Experiments: methods x seeds -> rows -> results -> report.

compare  comparisons: begun, continued, summarised
cells    one entry of a comparison with one seed
demo     what `paml demo` does
tuning   the search for better settings
"""
