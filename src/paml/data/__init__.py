"""Data: from raw tables to a prepared data set, without torch.

schema           what a data set is: user, item and context fields; target rating or click
vocabulary       values -> codes, fitted on training users; 0 is "unknown"
protocol         cold users, filters, user split, support/query split, major and minor users
new_items        items that are held out of training, and known users who are asked about them
time_split       users split by the date on which they first appear
time_unit        times in seconds, where days and dates are counted
target_encoding  item features computed from training users' targets
dataset          a prepared data set on disk: Parquet, flat arrays, a manifest with a fingerprint
integrity        whether a prepared data set is what was written
frames           tables in memory as input
prepare          source -> rules on users -> build
keywords         settings as keyword arguments, for type checkers
notes            what people should know about the result
reuse            a data set that is there already, for a call that would make the same one
resplit          the same users, split with another seed
row_order        the interactions in order of users, sorted in bounded memory
row_files        the interactions on disk, written some users at a time
build            splits users, orders rows, encodes fields, records everything
croissant        the same for catalogues, in MLCommons' format
describe         what a prepared data set contains
show             the same in a notebook
sources          where raw tables come from
readers          reading files, with errors that name the line
infer            a first schema for your own tables
"""
