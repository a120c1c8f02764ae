"""Access control: accounts and permissions of ``plain_acl.yml``, and the guard before every request."""
