"""The JSON API: typed endpoints, their values as JSON, and the OpenAPI document. Pages call the same functions."""
