"""The main job, ``python -m demo.flights``: 336,776 flights pass through broker, clients and Spark, and the broker is
killed half-way.

Each part has its own process, as in real use: the broker (``rucola up``), two producers (`produce`), and this process,
which drives Spark and draws the screen. `job` is the whole story; each of the other modules has one task:

    java        is there a Java that Spark can run on
    data        rows of the packaged CSV files as messages
    produce     the producer process
    workplace   the working directory, one run's only
    processes   start, kill and restart the processes
    deadline    a time limit for calls that have none
    pipeline    bronze to silver to gold, as functions from DataFrame to DataFrame
    tables      where the tables lie, and one micro-batch written exactly once in effect
    tasks       what each task of a micro-batch does
    columns     the work on each flight, column by column
    figures     the gold figures as plain rows
    expected    the same figures straight from the CSV, by another road
    compare     every figure against every figure
    reports     Spark's reports about the micro-batches
    measure     rates and latencies from what was observed
    picture     one page of pictures
    screen      progress bars and the closing table
"""
