"""Attacks on a running broker, one program each, with canaries beside them: ``python -m tests.attack.siege``.

Run by hand, never by ``make test``: what is measured here depends on the machine. What must hold on every machine
(bounds, refusals, requests that are put off) is asserted in ``tests/attack/test_*.py``.
"""
