"""Changes: each is planned and shown first, then made by a token that names what was shown, and written to the audit
log.
"""
