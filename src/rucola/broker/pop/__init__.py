"""POP: keeps track of which client holds a popped message and for how long, and revives messages that were not
acknowledged.
"""
