"""The engine laboratory: what texts claim about this kind of storage engine, measured on the machine at hand.

A lesson is one file of ``lessons``. This package is a tool, not a part of the engine: it opens files and reads clocks
by itself where that is what a lesson shows (decision 6), and nothing but the command imports it.
"""
