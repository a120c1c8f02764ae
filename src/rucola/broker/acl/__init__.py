"""Access control: accounts and permissions of ``plain_acl.yml``, and the guard that checks every request."""
