"""The engine laboratory: common claims about this kind of storage engine, measured on this machine.

A lesson is one file of ``lessons``. This package is a tool and not a part of the engine; only the command imports it.
Lessons about files or time open files and read clocks directly (decision 6).
"""
