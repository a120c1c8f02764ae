"""The engine laboratory: common claims about this kind of storage engine, measured on this machine.

A lesson is one file of ``lessons``. This package is a tool and not a part of the engine; only the command ``rucola
lab`` imports it. Unlike the engine, lessons may open files and read clocks without ``rucola.runtime`` (decision 6).
"""
