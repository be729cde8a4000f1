"""Analysis: rows of a comparison to conclusions; no torch, and no drawing but what a notebook shows.

tests        samples -> p-values and confidence intervals
comparisons  rows of methods and seeds -> means over seeds, the paper's t-tests, paired tests
fairness     the gap between major and minor users, and tests of it
rates        the users' learning rates, and whether they are personal at all
entries      means of entries, and which are best
shots        few known ratings: means, and the best method against the best baseline
orders       what lists are ordered by: means, and what choice and a personal rate bring
plan         what a comparison is asked to do
environment  with what it was computed
results      everything that a report says, as one value
summarise    a comparison's folder -> results
sentences    what is said of any metric, and when a difference is sure
list_verdict what is said of lists
verdict      all of it in a few sentences
quoted       the paper's numbers
paper        the paper's numbers beside ours
format       numbers and lists in words
show         results in a notebook
"""
