"""Figures against budgets: ``python -m bench.run``. The ratios count; absolute figures depend on the machine."""
