"""Works on whole stores: builds queues and index again, repairs, salvages. The work is cut into tasks that may run in
other processes and on other machines.
"""
