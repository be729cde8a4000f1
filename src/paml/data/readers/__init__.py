"""Readers: raw files to tables, with errors that name file and line.

inputs     folders and archives, and the files in them
text       encodings, separators, quotes: how a text file is written
delimited  lines -> typed columns
parquet    the same for Parquet
reader     several tables of one input, and its checksum
"""
