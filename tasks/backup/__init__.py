"""A back-up of all that a clone knows: `rft backup make FOLDER`, `rft backup restore FOLDER INTO`.

What an audit needs a year later lies in five places: Git's objects (branches, the ledger, one
revision per run), DVC's cache, `.rft/` (records, pages, what is served), and the databases of
MLflow and Prefect. A plain copy of the folder would hold them too, but also the machine key,
half-written databases and addresses of the old place. So a back-up consists of parts that can be
verified:

    bundles/SHA256.bundle  Git's refs and objects, as `git bundle` writes them: one file, which
                           `git clone` reads without this program.
    objects/AB/CDEF...     Every other file once, under its SHA-256.
    manifest.json          What the back-up consists of: each file's name, SHA-256 and size. It is
                           written last, so a killed back-up leaves the one before it whole.

    manifest.py   The files of a back-up.
    contents.py   What belongs in a back-up, and what is left out and reported.
    save.py       Makes a back-up, or brings one up to date.
    restore.py    Verifies a back-up, and lays it out as a clone.
    databases.py  Copies SQLite while others write, and moves MLflow's addresses to the new place.
"""

from tasks.backup.manifest import Manifest
from tasks.backup.restore import restore, verify
from tasks.backup.save import Saved, save

__all__ = ["Manifest", "Saved", "restore", "save", "verify"]
