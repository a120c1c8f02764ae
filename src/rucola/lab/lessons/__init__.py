"""One file per lesson. ``LESSON`` says what is claimed and by whom, what lies above it is the program."""
