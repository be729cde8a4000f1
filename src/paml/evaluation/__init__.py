"""Evaluation: one row per user, never averaged here.

metrics    one value per user, with label, direction and digits
scoring    an ensemble and a split -> one row per user
ranking    all items ranked for a user: the list, judged by what the user liked
item_facts how popular items are, and what they contain
scenarios  few known ratings, known and new items
blinding   data sets in which the targets and items to be predicted are erased
"""
