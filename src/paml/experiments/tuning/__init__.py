"""Tuning: the search for better settings, judged by validation users.

search  trials -> a recipe file; resumable
study   trials so far -> what to try next (Optuna)
space   which settings are searched, in which ranges, for every method
"""
