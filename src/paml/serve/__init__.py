"""The service: users and their ratings in a store, recommendations over HTTP, and a page to try them.

server      the process: address, signals, workers
routes      the HTTP routes: parse, call, render
schemas     requests and answers, described for OpenAPI
problems    errors as problem documents
middleware  the door: host, key, rate, body, headers
limits      size and time of a body, requests per second
telemetry   metrics and logs
service     stored users in, answers out
batcher     concurrent requests adapted together
cache       adapted users, kept for the next request
static      the files of the page, which lie in page/
store       users, ratings and keys in SQLite or PostgreSQL
"""
