"""The service: users and their ratings in a store, recommendations over HTTP, and a page to try them.

server       the process: address, signals
workers      several processes that share an address, the store and the model's memory
connections  how many connections there may be, and for how long one may be silent
descriptors  how many files and sockets the process may have
middleware   checks around every request: host, key, rate, body, headers
access       who may do what: keys and their scopes
limits       size and time of a body, requests per second and at once
current      the request that is being served: its id, who sent it
routes       the HTTP routes: parse, call, render
direct       the route of new users, without FastAPI's layers
admin        the audit log over HTTP
schemas      requests and responses, described for OpenAPI
description  the OpenAPI description for the model in use
problems     errors as problem documents
telemetry    metrics and logs
service      what the service does, apart from HTTP
costs        what requests cost the model, and which are heavy
turns        who is next, and how long it will take
batcher      concurrent requests adapted together
threads      calls that wait or take a moment, off the event loop
cache        adapted users, kept for the next request
static       the files of the page, in page/
store        users, ratings and keys in SQLite or PostgreSQL
"""
