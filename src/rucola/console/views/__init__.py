"""What pages and the API show: each view takes a visit and a query, and returns one typed value."""
