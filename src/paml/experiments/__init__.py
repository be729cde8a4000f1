"""Experiments: methods x seeds -> rows -> results -> report.

compare      comparisons: every entry with every seed, then a report
plan         what a comparison is asked to do: made, checked, begun or continued
cells        one entry of a comparison with one seed
grid         cells, several at once
workers      tasks on several processes of this machine
cluster      tasks on a Dask cluster
evaluate     a trained run on a split: errors, and lists
orders       what a run's lists may be ordered by
environment  with what the cells are fitted
demo         what `paml demo` does
tuning       the search for better settings
"""
