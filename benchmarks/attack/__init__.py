"""Attacks: programs that try to break what must not break, each `python -m benchmarks.attack.NAME --help`.

runs          random changes to the files of a run: refused, or the same answers
datasets      random changes to a prepared data set: refused, or the same data
tables        random changes to CSV files: refused, or read as Python's own csv module reads them
folders       hostile runs, data sets, tables and archives: a clear error, in bounded time and memory
kills         `kill -9` of trainings: resumed to weights that are equal byte by byte
power         power loss in trainings and preparations: what was not synced is lost, and the rest goes on
server_kills  `kill -9` of the service under load, with SQLite and PostgreSQL: nothing acknowledged is lost
restores      backups under load, a disaster, a restoration: what was acknowledged before the backup is back
store_power   power loss under an SQLite store: what was not synced is lost, and nothing acknowledged was
silent        bodies that never come, silent connections, endless heads: others are answered as before
overload      hundreds of clients at once: some are answered in time, the others are turned away at once
heavy         the dearest answers beside usual ones: how much longer these take than alone
fuzz          requests that are nearly right: none gets a server error, and memory and files stay as they were

All are bounded in time and count (`--count`, `--seconds`, `--clients`), and what is random has a `--seed`. The last
four measure the service and print what they saw; the others exit with 1 if anything was found.
"""
