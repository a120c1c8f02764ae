"""One file per lesson: first the program, then ``LESSON``, which says what is claimed and by whom."""
