"""Infer: a first schema file for somebody's own tables, with the reason for every guess.

sample   the first rows of a file, however it is written
columns  what a column's values tell
roles    which table and which column is what
guess    fields and their kinds
render   the guess as a schema file (`paml data inspect`)
"""
