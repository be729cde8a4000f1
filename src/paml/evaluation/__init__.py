"""Evaluation: one row per user, never averaged here.

metrics    one value per user, with label, direction and digits
scoring    an ensemble and a split -> one row per user
scenarios  few known ratings, known and new items
blinding   data sets in which the targets to be predicted are erased
"""
