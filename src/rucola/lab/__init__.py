"""The engine laboratory: common claims about this kind of storage engine, measured on this machine.

A lesson is one file of ``lessons``. This package is a tool and not a part of the engine. It opens files and reads
clocks itself when a lesson is about that (decision 6), and only the command imports it.
"""
