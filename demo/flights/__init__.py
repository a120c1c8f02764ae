"""The main job, ``python -m demo.flights``: 336,776 flights pass through broker, clients and Spark, and the broker is
killed half-way.

Each part has its own process, as in real use: the broker (``rucola up``), two producers (`produce`), and this process,
which drives Spark and draws the screen. `job` runs everything; each of the other modules has one task:

    java        finds the Java that Spark would start
    data        rows of the packaged CSV files as messages
    produce     the producer process
    workplace   the working directory, which belongs to one run at a time
    processes   start, kill and restart the processes
    deadline    a time limit for calls that have none
    pipeline    bronze to silver to gold, as functions from DataFrame to DataFrame
    tables      the tables on disk, and how a micro-batch is written with the effect of exactly once
    tasks       what each task of a micro-batch does
    columns     the work on each flight, column by column
    figures     the gold figures as plain rows
    expected    the same figures, computed independently from the CSV
    compare     each figure of gold against the figure from the CSV
    reports     Spark's reports about the micro-batches
    measure     rates and latencies, computed from the observations of the run
    picture     one page of pictures
    screen      progress bars and the closing table
"""
