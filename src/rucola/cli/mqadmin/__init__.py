"""``rucola mqadmin``: administers a cluster with RocketMQ's command and option names (5.3.3, ``mqadmin``).

There is one module per group of commands, which register with ``app``; ``client.admin`` has their requests. The
commands also work with RocketMQ's servers. Exit codes: 0 success, 1 failure, 2 usage.
"""
