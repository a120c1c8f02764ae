"""Attacks on a running broker, while steady clients (canaries) measure the damage to others: ``python -m
tests.attack.siege``.

Each attack is a separate program. Attacks are run by hand and never by ``make test``, because the measurements depend
on the machine. Properties that hold on every machine (bounds, refusals, postponed requests) are asserted in
``tests/attack/test_*.py``.
"""
