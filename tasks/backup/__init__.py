"""A back-up of all that a clone knows: `rft backup make FOLDER`, `rft backup restore FOLDER INTO`.

What can be audited a year later lies in five places: Git's objects (branches, the ledger, one
revision per run), DVC's cache, `.rft/` (records, pages, what is served), and the databases of
MLflow and Prefect. A copy of the folder would hold them too, and the machine key, half-written
databases and addresses of the old place with them. So a back-up is made of parts that can be
verified:

    bundles/SHA256.bundle  Git's refs and objects, as `git bundle` writes them; one file, which
                           `git clone` reads without this program
    objects/AB/CDEF...     every other file once, under its SHA-256
    manifest.json          what it consists of: each file's name, SHA-256 and size. Written last,
                           so a killed back-up leaves the one before it whole

    manifest.py   the files of a back-up
    contents.py   what belongs into one, and what is left out and said
    save.py       make one, or bring it up to date
    restore.py    verify one, and lay it out as a clone
    databases.py  copy SQLite while others write; MLflow's addresses at the new place
"""

from tasks.backup.manifest import Manifest
from tasks.backup.restore import restore, verify
from tasks.backup.save import Saved, save

__all__ = ["Manifest", "Saved", "restore", "save", "verify"]
