"""Infer: a first schema file for your own tables, with the reason for every guess.

sample   the first rows of a file, whatever its format
columns  what a column's values reveal
roles    the role of each table and column
guess    fields and their kinds
render   the guess as a schema file (`paml data inspect`)
"""
