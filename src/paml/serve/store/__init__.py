"""The store: users, their ratings and the service's keys, in SQLite or PostgreSQL.

store       what is kept and how it is changed
database    access to either database: durable writes, failures as one error
schema      the tables
migrations  from one version of the tables to the next
api_keys    keys that open the service
audit       which key changed what and when
values      what a store can keep
backup      everything a store holds as one file
restoring   a store made what a backup holds
copying     rows from one store to another
checking    whether a store is whole
tidying     what deletions leave behind
"""
