"""Figures against budgets: ``python -m bench.run``. Absolute figures depend on the machine; the ratios are what counts."""
