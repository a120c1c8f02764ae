"""Compares measured figures with budgets: ``python -m bench.run``. Only the ratios matter: absolute figures depend on
the machine.
"""
