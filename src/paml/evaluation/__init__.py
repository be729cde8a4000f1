"""Evaluation: one row per user, never averaged here.

metrics    one value per user, with label, direction and digits
scoring    an ensemble and a split -> one row per user
ranking    all items ranked for a user: the list, judged by what the user liked
scenarios  few known ratings, known and new items
blinding   data sets in which the targets to be predicted are erased
"""
