"""Tuning: the search for better settings, judged by validation users.

search     trials -> a recipe file; resumable
plan       what a search is asked to do
trial      one trial, here or in another process
shared     trials in a storage that several commands share
criterion  what trials are judged by
study      trials so far -> what to try next (Optuna)
space      which settings are searched, in which ranges, for every method
"""
