"""The store: users, their ratings and the service's keys, in SQLite or PostgreSQL.

store       what is kept and how it is changed
database    access to either database: durable writes, failures as one error
schema      the tables
migrations  from one version of the tables to the next
api_keys    keys that open the service
"""
