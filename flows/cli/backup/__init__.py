"""Back up all that is known here, verify a back-up, or restore one.

  rft backup make /mnt/disk/agent                   make one, or bring it up to date
  rft backup verify /mnt/disk/agent                 verify every byte of it
  rft backup restore /mnt/disk/agent /srv/agent     verify, then lay it out in a new folder

docs/backup.md says what is in it, what is left out, and what that means.
"""
