"""``rucola mqadmin``: administers a cluster with RocketMQ's command and option names (5.3.3, ``mqadmin``).

Each module registers one group of commands with ``app``; ``client.admin`` sends their requests. The commands also work
with RocketMQ's servers. Exit codes: 0 success, 1 failure, 2 usage.
"""
