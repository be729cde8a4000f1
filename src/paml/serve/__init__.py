"""The service: users and their ratings in a store, recommendations over HTTP, and a page to try them."""
