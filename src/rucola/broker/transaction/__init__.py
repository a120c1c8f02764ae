"""Transactional messages: invisible until their producer commits them."""
