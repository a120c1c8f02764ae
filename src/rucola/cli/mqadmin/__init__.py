"""``rucola mqadmin``: the administration of a cluster with RocketMQ's command and option names (5.3.3, ``mqadmin``).

A module for each family of commands, ``app`` holds them; what they ask stands in ``client.admin``. They work against
RocketMQ's servers as well. Exit codes: 0, 1 failed, 2 usage.
"""
