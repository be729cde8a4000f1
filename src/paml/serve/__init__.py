"""The service: users and their ratings in a store, recommendations over HTTP, and a page to try them.

server      the process: address, signals, workers
routes      the HTTP routes: parse, call, render
schemas     requests and responses, described for OpenAPI
problems    errors as problem documents
middleware  checks around every request: host, key, rate, body, headers
limits      size and time of a body, requests per second
telemetry   metrics and logs
service     what the service does, apart from HTTP
batcher     concurrent requests adapted together
cache       adapted users, kept for the next request
static      the files of the page, in page/
store       users, ratings and keys in SQLite or PostgreSQL
"""
