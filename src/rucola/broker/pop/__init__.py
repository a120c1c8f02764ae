"""POP: which client holds a popped message until when, and the revival of messages that were not acknowledged."""
