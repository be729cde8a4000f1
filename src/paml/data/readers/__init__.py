"""Readers: raw files to tables, with errors that name file and line.

inputs     folders and archives, and the files in them
text       encodings, separators and quotes of text files
delimited  lines -> typed columns
parquet    Parquet files -> the same columns
reader     several tables of one input, and its checksum
"""
