"""Works on whole stores: rebuilds queues and index, repairs damage in place, salvages messages. The work is cut into
tasks that may run in other processes and on other machines.
"""
